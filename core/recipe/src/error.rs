//! The one distinction that callers make between errors: the user's input is wrong, or the run failed.

use std::fmt;

/// Wrong input from the user. Anywhere in an `anyhow` chain it makes the program's exit code 2.
#[derive(Debug)]
pub struct InputError(pub String);

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InputError {}

/// An `anyhow::Error` that holds an [`InputError`]; takes the arguments of `format!`.
#[macro_export]
macro_rules! input_error {
    ($($arg:tt)*) => { ::anyhow::Error::new($crate::InputError(format!($($arg)*))) };
}
