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

/// Most problems that one message lists.
const MOST_LISTED: usize = 100;

/// The begin of a problem's line, before its number.
const ITEM: &str = "\n  (";

/// One error for all problems found together: a single one as it is, several numbered, one a line.
pub fn all_of(mut problems: Vec<anyhow::Error>) -> Option<anyhow::Error> {
    if problems.len() < 2 {
        return problems.pop();
    }
    let mut text = format!("{} problems:", problems.len());
    for (i, problem) in problems.iter().take(MOST_LISTED).enumerate() {
        // A problem may quote input of several lines.
        let line: String = format!("{problem:#}").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text += &format!("{ITEM}{}) {line}", i + 1);
    }
    if problems.len() > MOST_LISTED {
        text += &format!("{ITEM}and {} more)", problems.len() - MOST_LISTED);
    }
    Some(InputError(text).into())
}

/// The lines of a message: several where [`all_of`] made a list of problems.
pub fn lines(message: &str) -> impl Iterator<Item = &str> {
    let (mut rest, mut number) = (Some(message), 0);
    std::iter::from_fn(move || {
        let text = rest?;
        number += 1;
        let next = text
            .find(&format!("{ITEM}{number}) "))
            .or_else(|| text.find(&format!("{ITEM}and ")).filter(|_| number > 1));
        let (line, left) = next.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
        rest = left;
        Some(line)
    })
}

/// An `anyhow::Error` that holds an [`InputError`]; takes the arguments of `format!`.
#[macro_export]
macro_rules! input_error {
    ($($arg:tt)*) => { ::anyhow::Error::new($crate::InputError(format!($($arg)*))) };
}

/// The path of a value out of range, and the rest of a sentence that starts with it, such as "must be at least 1".
pub type Problem = (String, String);
