//! The one distinction callers make between errors: the user's input is wrong, or the run failed.

/// The user's input is wrong. Anywhere in an `anyhow` chain it makes the program's exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// An `anyhow::Error` that holds an [`InputError`]; takes the arguments of `format!`.
#[macro_export]
macro_rules! input_error {
    ($($arg:tt)*) => { ::anyhow::Error::new($crate::InputError(format!($($arg)*))) };
}
