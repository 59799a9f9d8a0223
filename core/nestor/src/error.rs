//! Error messages and exit codes: 2 for wrong input, 1 for a failed run.

use std::any::Any;
use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use nestor_host::Stopped;
pub use nestor_recipe::InputError;

/// Longest message in characters, since messages may quote input.
const LONGEST: usize = 2_000;

/// The one line that a user sees: the chain of causes, with a remedy for a full disk.
pub fn message(error: &anyhow::Error) -> String {
    let full = |cause: &io::Error| {
        matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    };
    let text = brief(&format!("{error:#}"));
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    match error.chain().filter_map(|cause| cause.downcast_ref()).any(full) {
        true => format!("{text}; the disk is full: free some space and try again (--resume continues a run)"),
        false => text,
    }
}

/// A message without the C++ backtrace that libtorch appends.
pub fn brief(message: &str) -> String {
    let marks = ["\nException raised from", "\\nException raised from", "\nframe #", "\\nframe #"];
    let end = marks.iter().filter_map(|mark| message.find(mark)).min().unwrap_or(message.len());
    message[..end].trim_end().to_string()
}

thread_local! {
    /// True while this thread runs work of [`quietly`].
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs work of a library that panics on bad input; returns the panic's text in place of a report.
pub fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(outer);
    result.map_err(|panic| brief(panic_text(&*panic).unwrap_or("a panic without a message")))
}

/// True on a thread whose panic becomes an error of [`quietly`]: the panic itself needs no message.
pub fn is_quiet() -> bool {
    QUIET.get()
}

/// The message of a panic, unless it is not a text.
pub fn panic_text(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
}
