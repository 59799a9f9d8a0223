//! The one distinction callers make between errors: the user's input is wrong (exit code 2), or the run failed (1).

/// The user's input is wrong. Anywhere in an `anyhow` chain it makes the exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// An `anyhow::Error` that holds an [`InputError`]; takes what `format!` takes.
#[macro_export]
macro_rules! input_error {
    ($($arg:tt)*) => { anyhow::Error::new($crate::error::InputError(format!($($arg)*))) };
}

/// A message without the C++ backtrace that libtorch puts behind its own.
pub fn brief(message: &str) -> String {
    let marks = ["\nException raised from", "\\nException raised from", "\nframe #", "\\nframe #"];
    let end = marks.iter().filter_map(|mark| message.find(mark)).min().unwrap_or(message.len());
    message[..end].trim_end().to_string()
}
