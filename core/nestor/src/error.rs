//! Error messages and exit codes: 2 for wrong input, 1 for a failed run.

use std::any::Any;
use std::io::{self, ErrorKind};

pub use nestor_recipe::InputError;

/// A signal asked the run to stop. The work under way is discarded.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal")]
pub struct Stopped;

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

/// The message of a panic, unless it is not a text.
pub fn panic_text(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
}
