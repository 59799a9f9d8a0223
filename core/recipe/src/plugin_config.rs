//! A plugin's configuration from a file of its own.

use std::path::Path;

use anyhow::Result;
use nestor_plugin::files::{self, SMALL};
use serde_json::{Value, json};

use crate::input_error;

/// A plugin's config from the file of `--config`. JSON is YAML, so one reader suffices.
pub fn read_config(path: &Path) -> Result<Value> {
    let text = files::read_to_string(path, SMALL).map_err(|e| input_error!("--config {}: {e}", path.display()))?;
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    serde_yaml::from_str(&text).map_err(|e| input_error!("--config {}: {e}", path.display()))
}
