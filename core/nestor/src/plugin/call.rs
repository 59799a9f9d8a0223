//! Calls into a plugin: a sink collects its texts, and its return code becomes a `Result`.

use std::ffi::c_void;

use anyhow::{Result, anyhow};
use nestor_plugin::ffi;

use crate::input_error;
use crate::track::terminal;

/// The texts that a plugin put into the sink during one call.
#[derive(Default)]
pub struct Texts {
    fields: Vec<(u32, Vec<u8>)>,
}

impl Texts {
    /// The bytes put last into a field; empty if it was never put.
    pub fn bytes(&mut self, field: u32) -> Vec<u8> {
        let last = self.fields.iter_mut().rev().find(|(f, _)| *f == field);
        last.map(|(_, bytes)| std::mem::take(bytes)).unwrap_or_default()
    }

    pub fn text(&mut self, field: u32, name: &str) -> Result<String> {
        utf8(self.bytes(field), name)
    }

    /// All texts of a field, in the order put.
    pub fn all(&mut self, field: u32, name: &str) -> Result<Vec<String>> {
        let mine = self.fields.iter_mut().filter(|(f, _)| *f == field);
        mine.map(|(_, bytes)| utf8(std::mem::take(bytes), name)).collect()
    }
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| anyhow!("the plugin's {name} is not UTF-8: {}", e.utf8_error()))
}

unsafe extern "C" fn put(context: *mut c_void, field: u32, text: ffi::Str) {
    // SAFETY: `context` is the `Texts` of the running call, used by its thread alone; `text` is borrowed for this call.
    unsafe { (*context.cast::<Texts>()).fields.push((field, text.bytes().to_vec())) }
}

/// Calls a function of a plugin with a sink. A code other than OK becomes an error with the plugin's message.
pub fn call(function: impl FnOnce(*mut ffi::Sink) -> i32) -> Result<Texts> {
    let mut texts = Texts::default();
    let mut sink = ffi::Sink { context: std::ptr::from_mut(&mut texts).cast(), put };
    let code = function(&mut sink);
    if code == ffi::OK {
        return Ok(texts);
    }
    let message = String::from_utf8_lossy(&texts.bytes(ffi::ERROR)).into_owned();
    let message = if message.is_empty() { "failed without a message".to_string() } else { message };
    match code {
        ffi::INPUT => Err(input_error!("{message}")),
        ffi::FAILED | ffi::PANIC => Err(anyhow!(message)),
        _ => Err(anyhow!("{message} (with the unknown code {code})")),
    }
}

/// Calls a close function. A failure becomes a warning, since no caller waits for the result.
pub fn close(id: &str, function: impl FnOnce(*mut ffi::Sink) -> i32) {
    if let Err(error) = call(function) {
        terminal::warn(&format!("warning: plugin {id}: closing: {error:#}"));
    }
}
