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

/// One error for all problems found together: a single one as it is, several numbered in one message.
pub fn all_of(mut problems: Vec<anyhow::Error>) -> Option<anyhow::Error> {
    if problems.len() < 2 {
        return problems.pop();
    }
    let numbered = problems.iter().enumerate().map(|(i, problem)| format!("({}) {problem:#}", i + 1));
    let text = numbered.collect::<Vec<_>>().join("; ");
    Some(InputError(format!("{} problems: {text}", problems.len())).into())
}

/// An `anyhow::Error` that holds an [`InputError`]; takes the arguments of `format!`.
#[macro_export]
macro_rules! input_error {
    ($($arg:tt)*) => { ::anyhow::Error::new($crate::InputError(format!($($arg)*))) };
}
