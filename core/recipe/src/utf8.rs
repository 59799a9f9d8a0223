//! Files of text: one that is not UTF-8 is refused with the place of its first wrong byte.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use nestor_plugin::files::{self, SMALL};

/// Reads a file of UTF-8. The error of other text starts with `:LINE:COLUMN: `.
pub fn read_text(path: &Path) -> Result<String> {
    text_of(files::read(path, SMALL)?)
}

fn text_of(bytes: Vec<u8>) -> Result<String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Error::new(ErrorKind::InvalidData, ":1:1: this is UTF-16; save the file as UTF-8"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (before, at) = (error.as_bytes(), error.utf8_error().valid_up_to());
        let text = String::from_utf8_lossy(&before[..at]);
        let (line, last) = (text.split('\n').count(), text.split('\n').next_back().unwrap_or_default());
        let (column, byte) = (last.chars().count() + 1, before[at]);
        let message = format!(":{line}:{column}: the byte {byte:#04x} is not UTF-8; save the file as UTF-8");
        Error::new(ErrorKind::InvalidData, message)
    })
}

/// The text between a file's name and this error.
pub(super) fn colon(error: &Error) -> &'static str {
    if error.to_string().starts_with(':') { "" } else { ": " }
}
