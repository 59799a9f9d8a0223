//! The layer between the C functions and a plugin's safe code: the sink, error codes, and the guard against panics.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::ffi;

/// Sends text to the host during one call.
pub(crate) struct Out<'a>(&'a mut ffi::Sink);

impl Out<'_> {
    pub(crate) fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        // SAFETY: the host's function with the host's context; it copies the bytes before it returns.
        unsafe { (self.0.put)(self.0.context, field, ffi::Str::new(bytes)) }
    }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a plugin's code for one call from the host. An error gives `code`, a panic [`ffi::PANIC`], each with a message.
///
/// # Safety
/// `sink` is the host's sink of this call.
pub(crate) unsafe fn guard(
    sink: *mut ffi::Sink,
    code: i32,
    body: impl FnOnce(&mut Out<'_>) -> anyhow::Result<()>,
) -> i32 {
    // SAFETY: the caller's promise.
    let mut out = Out(unsafe { &mut *sink });
    GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| body(&mut out)));
    GUARDED.set(false);
    match result {
        Ok(Ok(())) => ffi::OK,
        Ok(Err(error)) => {
            out.text(ffi::ERROR, &format!("{error:#}"));
            code
        }
        Err(payload) => {
            let what = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
                (Some(text), _) => text,
                (_, Some(text)) => text.as_str(),
                _ => "a value that is no text",
            };
            let place = PLACE.take();
            out.text(ffi::ERROR, &format!("the plugin panicked{place}: {what}"));
            // A payload may panic in its own drop; this one is small and rare.
            std::mem::forget(payload);
            ffi::PANIC
        }
    }
}

/// Silences panics inside [`guard`], since the host gets their message, and records their source location. A plugin has
/// its own copy of the standard library, so the hook sees this plugin's panics alone.
pub(crate) fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match info.location() {
            Some(place) if GUARDED.get() => PLACE.set(format!(" at {}:{}", place.file(), place.line())),
            _ => before(info),
        }));
    });
}

/// Checks that the host's text is UTF-8.
///
/// # Safety
/// As for [`ffi::Str::bytes`].
pub(crate) unsafe fn utf8<'a>(text: ffi::Str, what: &str) -> anyhow::Result<&'a str> {
    // SAFETY: the caller's promise.
    std::str::from_utf8(unsafe { text.bytes() }).map_err(|_| anyhow::anyhow!("{what} is not UTF-8"))
}
