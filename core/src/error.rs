//! The one distinction callers make between errors: the user's input is wrong (exit code 2), or the run failed (1).

use std::io::{self, ErrorKind};

/// The user's input is wrong. Anywhere in an `anyhow` chain it makes the exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// A signal asked the run to stop; what was under way is given up.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal")]
pub struct Stopped;

/// An `anyhow::Error` that holds an [`InputError`]; takes what `format!` takes.
#[macro_export]
macro_rules! input_error {
    ($($arg:tt)*) => { anyhow::Error::new($crate::error::InputError(format!($($arg)*))) };
}

/// Longest message in characters; it may quote what was read.
const LONGEST: usize = 2_000;

/// The one line that a user sees of an error: the chain of its causes, and a disk that is full in plain words.
pub fn message(error: &anyhow::Error) -> String {
    let full = |cause: &io::Error| {
        matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    };
    let text = brief(&format!("{error:#}"));
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    match error.chain().filter_map(|cause| cause.downcast_ref()).any(full) {
        true => format!("{text}; the disk is full: free some space and try again (a run goes on with --resume)"),
        false => text,
    }
}

/// A message without the C++ backtrace that libtorch puts behind its own.
pub fn brief(message: &str) -> String {
    let marks = ["\nException raised from", "\\nException raised from", "\nframe #", "\\nframe #"];
    let end = marks.iter().filter_map(|mark| message.find(mark)).min().unwrap_or(message.len());
    message[..end].trim_end().to_string()
}
