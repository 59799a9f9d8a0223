//! Small JSON files, read with one clear message when they are wrong and written whole or not at all.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::input_error;

/// The object in a JSON file, or `None` where there is no such file.
pub fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(input_error!("{}: holds no JSON object; fetch the file again", path.display())),
        Err(error) => Err(input_error!("{}: not valid JSON ({error}); fetch the file again", path.display())),
    }
}

/// Writes a JSON file under a temporary name and renames it.
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    let temporary = path.with_extension("json.partial");
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(&temporary, text).with_context(|| format!("cannot write {}", temporary.display()))?;
    std::fs::rename(&temporary, path).with_context(|| format!("cannot rename to {}", path.display()))
}
