//! Results on standard output.

use std::io::Write;

use crate::terminal;
use anyhow::Result;
use serde_json::Value;

/// Prints a result as JSON or in plain form; nothing where the result is null, since another rank prints it.
pub fn print(json: bool, value: &Value, plain: impl FnOnce() -> String) -> Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let text = if json { value.to_string() } else { plain() };
    print_line(&text)
}

/// Prints a line in one piece.
pub fn print_line(text: &str) -> Result<()> {
    terminal::out().write_all(format!("{text}\n").as_bytes())?;
    Ok(())
}

/// One line per row.
pub fn rows(value: &Value) -> String {
    value.as_array().into_iter().flatten().map(words).collect::<Vec<_>>().join("\n")
}

/// Numbers on one line.
pub fn words(value: &Value) -> String {
    value.as_array().into_iter().flatten().map(Value::to_string).collect::<Vec<_>>().join(" ")
}

/// A word of a command as a shell takes it: in quotes where it has other characters than plain ones.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=+:,%@".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn a_word_with_blanks_is_quoted() {
        for (word, wanted) in [
            ("runs/a-1.b", "runs/a-1.b"),
            ("my runs/a", "'my runs/a'"),
            ("it's", "'it'\\''s'"),
            ("a$b", "'a$b'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(word), wanted);
        }
    }
}
