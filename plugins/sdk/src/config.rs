//! Parses a component's config from JSON. Errors name the key and the nearest known one.

use std::ops::RangeInclusive;

use anyhow::{Result, anyhow, bail, ensure};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The config of a component without keys.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoConfig {}

/// Checks the number of a config key.
pub fn check_between(key: &str, value: f64, range: RangeInclusive<f64>) -> Result<()> {
    let (from, to) = (range.start(), range.end());
    ensure!(range.contains(&value), "config key `{key}` must be between {from} and {to}, not {value}");
    Ok(())
}

/// Returns the JSON schema of a config type, as text.
pub(crate) fn schema<C: JsonSchema>() -> String {
    schemars::schema_for!(C).to_value().to_string()
}

/// Parses a config object. Unknown keys are errors even if the type lacks `deny_unknown_fields`.
pub fn parse<C: DeserializeOwned + JsonSchema>(text: &str) -> Result<C> {
    let value: Value = serde_json::from_str(text).map_err(|e| anyhow!("config is not JSON: {e}"))?;
    let Value::Object(object) = &value else { bail!("config must be an object of keys and values, not {value}") };
    let schema = schemars::schema_for!(C).to_value();
    let known: Vec<&str> =
        schema["properties"].as_object().map(|p| p.keys().map(String::as_str).collect()).unwrap_or_default();
    if let Some(key) = object.keys().find(|key| !known.contains(&key.as_str())) {
        bail!("config key `{key}` is unknown{}", suggest(key, &known));
    }
    serde_path_to_error::deserialize(&value).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let place = if path == "." { "config".to_string() } else { format!("config key `{path}`") };
        // serde: "unknown field `nrom`, expected one of `norm`, `weighting`", and the same for variants.
        let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        match names.split_first() {
            Some((given, known)) if message.starts_with("unknown") => {
                anyhow!("{place}: `{given}` is unknown{}", suggest(given, known))
            }
            _ => anyhow!("{place}: {message}"),
        }
    })
}

/// Returns the end of an error about an unknown name: "; did you mean `x`? known: a, b, x", without the question if no
/// known name is near.
pub fn suggest(given: &str, known: &[&str]) -> String {
    let nearest = known.iter().min_by_key(|name| strsim::damerau_levenshtein(given, name));
    let near = nearest.filter(|name| strsim::damerau_levenshtein(given, name) <= 1 + given.chars().count() / 3);
    let hint = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    let list = if known.is_empty() { "none".to_string() } else { known.join(", ") };
    format!("{hint}{} known: {list}", if hint.is_empty() { ";" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Config {
        #[serde(default)]
        #[allow(dead_code)]
        norm: Norm,
        #[serde(default)]
        #[allow(dead_code)]
        gamma: f64,
    }

    #[derive(Debug, Default, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Norm {
        #[default]
        Std,
        None,
    }

    fn error(text: &str) -> String {
        parse::<Config>(text).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_key_and_the_nearest_one() {
        assert_eq!(error(r#"{"nrom": 1}"#), "config key `nrom` is unknown; did you mean `norm`? known: norm, gamma");
        assert_eq!(
            error(r#"{"norm": "sdt"}"#),
            "config key `norm`: `sdt` is unknown; did you mean `std`? known: std, none"
        );
        assert!(error(r#"{"gamma": "x"}"#).starts_with("config key `gamma`: invalid type: string"));
        assert!(error("[]").starts_with("config must be an object"));
        assert!(error("{").starts_with("config is not JSON"));
    }
}
