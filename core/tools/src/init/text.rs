//! A recipe as commented YAML. The comments are the first sentences of the keys' documentation.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::choices::Choices;
use crate::plugin::Found;
use crate::recipe::{keys, keys_of};

/// Widest line of the text.
const WIDTH: usize = 120;

/// Meanings of keys by their path.
type Docs = BTreeMap<String, String>;

/// The text of a recipe: a header, the settings, and the keys of both plugins that keep their default as comments.
pub fn recipe(choices: &Choices, settings: &Value, [env, estimator]: &[Found; 2]) -> String {
    let mut docs: Docs = keys().into_iter().map(|key| (key.path, first_sentence(&key.doc))).collect();
    let mut unset = BTreeMap::new();
    for (section, found) in [("env", env), ("estimator", estimator)] {
        let path = |key: &str| format!("{section}.config.{key}");
        let keys = keys_of(&found.schema);
        docs.extend(keys.iter().map(|key| (path(&key.path), first_sentence(&key.doc))));
        let config = &settings[section]["config"];
        let rest = keys.into_iter().filter(|key| !key.path.contains(['.', '[']) && config[&key.path].is_null());
        unset.insert(
            format!("{section}.config"),
            rest.map(|key| (key.path.clone(), key.default.unwrap_or_default().replace('`', ""))).collect(),
        );
    }
    let mut writer = Writer { docs, unset, text: header(choices, env, estimator) };
    if let Value::Object(map) = settings {
        writer.section("", map, 0);
    }
    writer.text += "# wandb: {mode: offline}  # Tracking in Weights & Biases: offline, or live.\n";
    writer.text
}

fn header(choices: &Choices, env: &Found, estimator: &Found) -> String {
    let Choices { env: e, estimator: s, model } = choices;
    format!(
        "# Environment {}: {}.\n# Estimator {}: {}.\n# Written by: nestor init --env {e} --estimator {s} --model {model}\n\
         # All keys of a recipe: docs/recipe.md. One value for one run: nestor train FILE --set update.lr=1e-5\n",
        env.id,
        env.doc.trim_end_matches('.'),
        estimator.id,
        estimator.doc.trim_end_matches('.')
    )
}

struct Writer {
    docs: Docs,
    /// Keys that a plugin's config leaves to their default, with that default.
    unset: BTreeMap<String, Vec<(String, String)>>,
    text: String,
}

impl Writer {
    fn section(&mut self, path: &str, map: &Map<String, Value>, depth: usize) {
        for (key, value) in map {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match value {
                Value::Object(inner) if !inner.is_empty() || self.unset.contains_key(&path) => {
                    let open = if inner.is_empty() { format!("{key}: {{}}") } else { format!("{key}:") };
                    self.line(&path, &open, depth);
                    self.section(&path, inner, depth + 1);
                }
                Value::String(text) if text.contains('\n') => {
                    self.line(&path, &format!("{key}: |-"), depth);
                    for line in text.lines() {
                        self.text += &format!("{}{line}\n", "  ".repeat(depth + 1));
                    }
                }
                value => self.line(&path, &format!("{key}: {}", flow(value)), depth),
            }
        }
        for (key, default) in self.unset.remove(path).unwrap_or_default() {
            let shown = if default == "none" { format!("# {key}:") } else { format!("# {key}: {default}") };
            self.line(&format!("{path}.{key}"), &shown, depth);
        }
    }

    /// A key with its meaning behind it, or above it where the line would be too long.
    fn line(&mut self, path: &str, text: &str, depth: usize) {
        let indent = "  ".repeat(depth);
        let doc = self.docs.get(path).map_or("", String::as_str);
        let _ = match indent.len() + text.len() + 4 + doc.chars().count() {
            _ if doc.is_empty() => writeln!(self.text, "{indent}{text}"),
            width if width <= WIDTH && !text.ends_with("|-") => writeln!(self.text, "{indent}{text}  # {doc}"),
            _ => writeln!(self.text, "{indent}# {doc}\n{indent}{text}"),
        };
    }
}

fn first_sentence(doc: &str) -> String {
    let end = doc.find(". ").map_or(doc.len(), |at| at + 1);
    doc[..end].split("; ").next().unwrap_or_default().trim_end_matches('.').to_string()
}

/// A value on one line. Numbers have a point, which YAML 1.1 wants before an exponent.
fn flow(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            match text.split_once('e') {
                Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
                _ => text,
            }
        }
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// True for a text that YAML reads as itself without quotes.
fn is_plain(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_lowercase().as_str())
}
