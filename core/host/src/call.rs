//! Calls into a plugin: a sink collects its texts, and its return code becomes a `Result`.

use std::ffi::c_void;

use anyhow::{Result, anyhow, bail};
use nestor_plugin::ffi;

use crate::input_error;

/// A fault in the plugin itself, which it has caught.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(String);

/// Room for a handle that a plugin gives.
pub struct HandleSlot(pub *mut c_void);

// SAFETY: as for `Handle`.
unsafe impl Send for HandleSlot {}

impl HandleSlot {
    pub fn empty() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The handle, which must not be null.
    pub fn taken(self) -> Result<Handle> {
        if self.0.is_null() {
            bail!("the plugin gave a null handle; a handle must not be null");
        }
        Ok(Handle(self.0))
    }
}

/// A handle of a plugin, not null.
#[derive(Debug, Clone, Copy)]
pub struct Handle(*mut c_void);

// SAFETY: the border allows a handle to move between threads; their use at one time is up to its owner.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub fn pointer(self) -> *mut c_void {
        self.0
    }
}

/// The texts that a plugin put into the sink during one call.
#[derive(Default)]
pub struct Texts {
    fields: Vec<(u32, Vec<u8>)>,
    bytes: usize,
    /// The first rule that a text broke. Later texts are dropped.
    fault: Option<&'static str>,
}

impl Texts {
    /// True if a field was put, perhaps with an empty text.
    pub fn has(&self, field: u32) -> bool {
        self.fields.iter().any(|(f, _)| *f == field)
    }

    /// The bytes put last into a field; empty if it was never put.
    pub fn bytes(&mut self, field: u32) -> Vec<u8> {
        let last = self.fields.iter_mut().rev().find(|(f, _)| *f == field);
        last.map(|(_, bytes)| std::mem::take(bytes)).unwrap_or_default()
    }

    pub fn text(&mut self, field: u32, name: &str) -> Result<String> {
        utf8(self.bytes(field), name)
    }

    /// As [`Texts::text`], for a field that the plugin must put.
    pub fn required(&mut self, field: u32, name: &str, constant: &str) -> Result<String> {
        if !self.has(field) {
            bail!("the plugin did not put its {name} ({constant})");
        }
        self.text(field, name)
    }

    /// As [`Texts::bytes`], for a field that the plugin must put.
    pub fn required_bytes(&mut self, field: u32, name: &str, constant: &str) -> Result<Vec<u8>> {
        if !self.has(field) {
            bail!("the plugin did not put its {name} ({constant})");
        }
        Ok(self.bytes(field))
    }

    /// All texts of a field, in the order put.
    pub fn all(&mut self, field: u32, name: &str) -> Result<Vec<String>> {
        let mine = self.fields.iter_mut().filter(|(f, _)| *f == field);
        mine.map(|(_, bytes)| utf8(std::mem::take(bytes), name)).collect()
    }

    fn put(&mut self, field: u32, text: ffi::Str) {
        if self.fault.is_some() {
            return;
        }
        self.fault = match text.len {
            0 => None,
            _ if text.data.is_null() => Some("a text of the plugin is null and yet has a length"),
            len if field == ffi::STATE && len <= ffi::MOST_STATE => None,
            _ if field == ffi::STATE => Some("the plugin put over 256 MiB as its state"),
            len if len > ffi::MOST_BYTES - self.bytes => Some("the plugin put over 4 MiB of text in one call"),
            _ if self.fields.len() >= ffi::MOST_TEXTS => Some("the plugin put over 65536 texts in one call"),
            _ => None,
        };
        if self.fault.is_none() {
            self.bytes += if field == ffi::STATE { 0 } else { text.len };
            // SAFETY: borrowed for this call of `put`; null only without a length.
            self.fields.push((field, unsafe { text.bytes() }.to_vec()));
        }
    }
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| anyhow!("the plugin's {name} is not UTF-8: {}", e.utf8_error()))
}

unsafe extern "C" fn put(context: *mut c_void, field: u32, text: ffi::Str) {
    // SAFETY: `context` is the `Texts` of the running call, used by its thread alone.
    unsafe { (*context.cast::<Texts>()).put(field, text) }
}

/// Calls a function of a plugin with a sink and room for its other result. A code other than OK becomes an error with the
/// plugin's message.
pub fn call<T>(mut out: T, function: impl FnOnce(*mut ffi::Sink, &mut T) -> i32) -> Result<(Texts, T)> {
    let mut texts = Texts::default();
    let mut sink = ffi::Sink { context: std::ptr::from_mut(&mut texts).cast(), put };
    let code = function(&mut sink, &mut out);
    if code == ffi::OK {
        return match texts.fault {
            Some(fault) => Err(anyhow!(fault)),
            None => Ok((texts, out)),
        };
    }
    let message = String::from_utf8_lossy(&texts.bytes(ffi::ERROR)).into_owned();
    let message = if message.is_empty() { "failed without a message".to_string() } else { message };
    match code {
        ffi::INPUT => Err(input_error!("{message}")),
        ffi::FAILED => Err(anyhow!(message)),
        ffi::PANIC => Err(Panicked(message).into()),
        _ => Err(anyhow!("{message} (with the unknown code {code})")),
    }
}
