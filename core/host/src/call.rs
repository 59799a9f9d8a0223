//! Calls into a plugin: a sink collects its texts, and its return code becomes a `Result`. What a call gives is plain data,
//! so that it can come from another process.

use std::ffi::c_void;

use anyhow::{Result, anyhow, bail};
use nestor_plugin::{Image, ffi};
use nestor_recipe::input_error;
use serde::{Deserialize, Serialize};

use crate::bounded::few;
use crate::fault::Fault;
use crate::image::Images;

/// A fault in the plugin itself, which it has caught.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(String);

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

    fn of_address(address: u64) -> Result<Self> {
        if address == 0 {
            bail!("the plugin gave a null handle; a handle must not be null");
        }
        Ok(Self(std::ptr::with_exposed_provenance_mut(address as usize)))
    }
}

/// The result of a call beside its texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Out {
    Nothing,
    /// The address of a handle, which means something only in the process of the call.
    Handle(u64),
    Count(u64),
    Flags(u32),
    Step {
        reward: f64,
        terminated: u8,
        truncated: u8,
        valid: u8,
    },
    Scores {
        advantages: Vec<f32>,
        returns: Vec<f32>,
    },
    Parts(Vec<f64>),
    /// Losses and derivatives, with margins.
    Losses([Vec<f64>; 3]),
}

impl Out {
    /// The handle that `open` or `spawn` gave.
    pub fn handle(self) -> Result<Handle> {
        match self {
            Self::Handle(address) => Handle::of_address(address),
            _ => Err(foreign()),
        }
    }

    pub fn count(self) -> Result<u64> {
        match self {
            Self::Count(count) => Ok(count),
            _ => Err(foreign()),
        }
    }

    pub fn flags(self) -> Result<u32> {
        match self {
            Self::Flags(flags) => Ok(flags),
            _ => Err(foreign()),
        }
    }

    pub fn step(self) -> Result<ffi::Step> {
        match self {
            Self::Step { reward, terminated, truncated, valid } => {
                Ok(ffi::Step { reward, terminated, truncated, valid })
            }
            _ => Err(foreign()),
        }
    }

    pub fn scores(self) -> Result<(Vec<f32>, Vec<f32>)> {
        match self {
            Self::Scores { advantages, returns } => Ok((advantages, returns)),
            _ => Err(foreign()),
        }
    }

    pub fn parts(self) -> Result<Vec<f64>> {
        match self {
            Self::Parts(numbers) => Ok(numbers),
            _ => Err(foreign()),
        }
    }

    pub fn losses(self) -> Result<[Vec<f64>; 3]> {
        match self {
            Self::Losses(arrays) => Ok(arrays),
            _ => Err(foreign()),
        }
    }
}

/// Only a process whose memory is damaged answers another call than the one that was made.
fn foreign() -> anyhow::Error {
    anyhow!("the plugin's process sent the answer of another call")
}

/// The texts and images that a plugin put into the sink during one call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Texts {
    #[serde(deserialize_with = "few::<_, _, { ffi::MOST_TEXTS }>")]
    fields: Vec<(u32, Vec<u8>)>,
    #[serde(skip)]
    bytes: usize,
    images: Images,
    /// The first rule that was broken. Whatever comes later is dropped.
    fault: Option<Fault>,
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

    /// The images, in the order put.
    pub fn images(&mut self) -> Vec<Image> {
        self.images.take()
    }

    fn put(&mut self, field: u32, text: ffi::Str) {
        if text.len > 0 && text.data.is_null() {
            self.fault.get_or_insert(Fault::NullText);
        }
        if field == ffi::IMAGE && self.fault.is_none() {
            // SAFETY: borrowed for this call of `put`; null only without a length.
            self.fault = self.images.put(unsafe { text.bytes() }).err();
        } else if self.admit(field, text.len) {
            // SAFETY: borrowed for this call of `put`; null only without a length.
            self.fields.push((field, unsafe { text.bytes() }.to_vec()));
        }
    }

    /// Checks the limits of a call before one more text is taken.
    fn admit(&mut self, field: u32, length: usize) -> bool {
        if self.fault.is_none() {
            self.fault = match length {
                0 if self.fields.len() < ffi::MOST_TEXTS => None,
                length if field == ffi::STATE && length <= ffi::MOST_STATE => None,
                _ if field == ffi::STATE => Some(Fault::State),
                length if length > ffi::MOST_BYTES - self.bytes => Some(Fault::Bytes),
                _ if self.fields.len() >= ffi::MOST_TEXTS => Some(Fault::Texts),
                _ => None,
            };
        }
        if self.fault.is_none() && field != ffi::STATE {
            self.bytes += length;
        }
        self.fault.is_none()
    }

    /// The same texts, held to the limits again: they came from another process.
    fn checked(self) -> Self {
        let (images, fault) = match self.images.checked() {
            Ok(images) => (images, self.fault),
            Err(fault) => (Images::default(), self.fault.or(Some(fault))),
        };
        let mut checked = Self { fault, images, ..Self::default() };
        for (field, bytes) in self.fields {
            if !checked.admit(field, bytes.len()) {
                break;
            }
            checked.fields.push((field, bytes));
        }
        checked
    }
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| anyhow!("the plugin's {name} is not UTF-8: {}", e.utf8_error()))
}

unsafe extern "C" fn put(context: *mut c_void, field: u32, text: ffi::Str) {
    // SAFETY: `context` is the `Texts` of the running call, used by its thread alone.
    unsafe { (*context.cast::<Texts>()).put(field, text) }
}

/// All that a call gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    code: i32,
    texts: Texts,
    out: Out,
}

impl Answer {
    /// An answer that another process sent.
    pub fn checked(self) -> Self {
        Self { texts: self.texts.checked(), ..self }
    }

    /// The answer to a call of a function that the plugin lacks.
    pub fn missing() -> Self {
        let mut texts = Texts::default();
        texts.put(ffi::ERROR, ffi::Str::new(b"the plugin has no such function"));
        Self { code: ffi::FAILED, texts, out: Out::Nothing }
    }

    /// The handle that a call gave; none from a call that failed.
    pub fn handle(&self) -> Option<Handle> {
        if self.code == ffi::OK { self.out.clone().handle().ok() } else { None }
    }

    /// The texts and the other result. A code other than OK becomes an error with the plugin's message.
    pub fn result(mut self) -> Result<(Texts, Out)> {
        if self.code == ffi::OK {
            return match self.texts.fault {
                Some(fault) => Err(fault.into()),
                None => Ok((self.texts, self.out)),
            };
        }
        let message = String::from_utf8_lossy(&self.texts.bytes(ffi::ERROR)).into_owned();
        let message = if message.is_empty() { "failed without a message".to_string() } else { message };
        match self.code {
            ffi::INPUT => Err(input_error!("{message}")),
            ffi::FAILED => Err(anyhow!(message)),
            ffi::PANIC => Err(Panicked(message).into()),
            code => Err(anyhow!("{message} (with the unknown code {code})")),
        }
    }
}

/// Calls a function of a plugin with a sink and room for its other result.
pub fn call<T>(
    mut room: T,
    out: impl FnOnce(T) -> Out,
    function: impl FnOnce(*mut ffi::Sink, &mut T) -> i32,
) -> Answer {
    let mut texts = Texts::default();
    let mut sink = ffi::Sink { context: std::ptr::from_mut(&mut texts).cast(), put };
    let code = function(&mut sink, &mut room);
    Answer { code, texts, out: out(room) }
}

/// Calls a function that gives a handle.
pub fn call_for_handle(function: impl FnOnce(*mut ffi::Sink, &mut *mut c_void) -> i32) -> Answer {
    call(std::ptr::null_mut(), |handle: *mut c_void| Out::Handle(handle.expose_provenance() as u64), function)
}

/// Calls a function that gives texts alone.
pub fn call_for_texts(function: impl FnOnce(*mut ffi::Sink) -> i32) -> Answer {
    call((), |()| Out::Nothing, |sink, ()| function(sink))
}

/// The `open` of any kind of component.
pub type Open = unsafe extern "C" fn(config: ffi::Str, sink: *mut ffi::Sink, handle: *mut *mut c_void) -> i32;

/// Opens a component with its config.
pub fn open(open: Open, config: &str) -> Answer {
    // SAFETY: a function of a checked table; the room for the handle outlives the call.
    call_for_handle(|sink, handle| unsafe { open(ffi::Str::new(config.as_bytes()), sink, handle) })
}
