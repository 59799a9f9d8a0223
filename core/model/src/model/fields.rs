//! Typed access to the keys of a `config.json`.

use anyhow::Result;
use serde_json::{Map, Value};

use crate::input_error;

/// Typed access to a JSON object; `null` counts as absent.
pub struct Fields<'a>(pub &'a Map<String, Value>);

impl Fields<'_> {
    fn get<T>(&self, name: &str, want: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read(value) {
                Some(found) => Ok(Some(found)),
                None => Err(input_error!("{name} must be {want}, not {value}")),
            },
        }
    }

    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        self.get(name, "a whole number", Value::as_i64)
    }

    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name, "a number", Value::as_f64)
    }

    pub fn boolean(&self, name: &str) -> Result<Option<bool>> {
        self.get(name, "true or false", Value::as_bool)
    }

    pub fn text(&self, name: &str) -> Result<Option<String>> {
        self.get(name, "a string", |v| v.as_str().map(str::to_string))
    }

    pub fn required(&self, name: &str) -> Result<i64> {
        self.integer(name)?.ok_or_else(|| input_error!("{name} is missing; take the config.json of a whole model"))
    }
}
