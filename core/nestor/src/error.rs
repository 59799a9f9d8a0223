//! Errors as the program reports them: exit code 2 where the user's input is wrong, 1 where the run failed.

use std::io::{self, ErrorKind};

pub use nestor_recipe::InputError;

/// A signal asked the run to stop; what was under way is given up.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal")]
pub struct Stopped;

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
