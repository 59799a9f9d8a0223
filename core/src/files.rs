//! Small files, read with one clear message when they are wrong and written whole or not at all.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::input_error;

/// The object in a JSON file, or `None` where there is no such file.
pub fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(input_error!("{}: not UTF-8 text; fetch the file again", path.display()));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(input_error!("{}: holds no JSON object; fetch the file again", path.display())),
        Err(error) => Err(input_error!("{}: not valid JSON ({error}); fetch the file again", path.display())),
    }
}

/// What a tokens file holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    rows: Vec<Vec<u32>>,
}

/// The rows of a tokens file, `{"rows": [[ids…], …]}`.
pub fn read_tokens(path: &Path) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(path).map_err(|error| input_error!("{}: {error}", path.display()))?;
    let tokens: Tokens = serde_json::from_str(&text)
        .map_err(|error| input_error!("{}: {error}; tokens are {{\"rows\": [[id, …], …]}}", path.display()))?;
    Ok(tokens.rows)
}

/// Writes a JSON file.
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    write_whole(path, serde_json::to_string_pretty(value)? + "\n")
}

/// Replaces a file in one move, so that a reader, or a run that was killed, never finds half of it.
pub fn write_whole(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let written = std::fs::write(&partial, content).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // The first error is the one to report; on a full disk the leftover would only take room.
        let _ = std::fs::remove_file(&partial);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}
