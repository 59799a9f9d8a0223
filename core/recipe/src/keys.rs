//! The keys of a recipe, read from the structs: the JSON schema, and the list of keys for errors and documentation.

use std::fmt::Write;

use serde_json::Value;

use super::Recipe;
use super::permissions::{OnResume, on_resume};

/// One key of a YAML or JSON document.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Its path, such as `update.lr`.
    pub path: String,
    /// The values it takes, in words.
    pub kind: String,
    /// Its value if it is left out, as Markdown; `None` for a required key.
    pub default: Option<String>,
    pub doc: String,
    /// The permission to change it on resume. `None` in other documents, and for sections that every recipe has.
    pub on_resume: Option<OnResume>,
}

/// The JSON schema of a recipe file, for editors. No key is required, since a file may inherit any key.
pub fn json_schema() -> Value {
    let mut schema = raw_schema();
    forget_required(&mut schema);
    schema["properties"]["extends"] = serde_json::json!({
        "description": "Another recipe, relative to this file, that this one extends.",
        "type": "string",
    });
    schema["patternProperties"] = serde_json::json!({
        "^x-": { "description": "Ignored: a place for anchors." },
    });
    schema
}

/// All keys of a recipe in the order of the structs.
pub fn keys() -> Vec<Key> {
    let mut keys = keys_of(&raw_schema());
    keys.iter_mut().for_each(|key| key.on_resume = on_resume(&key.path));
    keys
}

/// All keys of a JSON schema as schemars writes it, sections before the keys in them.
pub fn keys_of(schema: &Value) -> Vec<Key> {
    let mut keys = Vec::new();
    Schema { root: schema }.collect("", schema, &mut keys);
    keys
}

/// Keys as a Markdown table.
pub fn table(keys: &[Key]) -> String {
    let recipe = keys.iter().any(|key| key.on_resume.is_some());
    let mut table = String::from(match recipe {
        true => "| key | takes | default | may change on resume | meaning |\n|---|---|---|---|---|\n",
        false => "| key | takes | default | meaning |\n|---|---|---|---|\n",
    });
    for key in keys {
        let default = key.default.as_deref().unwrap_or("required");
        let permission = match key.on_resume {
            _ if !recipe => "",
            Some(OnResume::Free) => " yes |",
            Some(OnResume::BetweenIterations) => " between iterations |",
            Some(OnResume::Fixed) => " no |",
            None => " |",
        };
        let (kind, doc) = (key.kind.replace('|', "\\|"), key.doc.replace('|', "\\|"));
        writeln!(table, "| `{}` | {kind} | {default} |{permission} {doc} |", key.path)
            .expect("a string takes what is written");
    }
    table
}

fn raw_schema() -> Value {
    schemars::schema_for!(Recipe).to_value()
}

fn forget_required(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.remove("required");
            map.values_mut().for_each(forget_required);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_required),
        _ => {}
    }
}

/// A schema whose references are resolved in `root`.
struct Schema<'a> {
    root: &'a Value,
}

impl<'a> Schema<'a> {
    /// Appends the keys of a section and of the sections in it.
    fn collect(&self, path: &str, schema: &'a Value, keys: &mut Vec<Key>) {
        let Some(properties) = schema["properties"].as_object() else { return };
        let required = schema["required"].as_array();
        for (name, property) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let target = self.resolve(property);
            let must = required.is_some_and(|names| names.iter().any(|n| n == name));
            let default = match &property["default"] {
                Value::Null => "none".to_string(),
                Value::Object(_) if target["properties"].is_object() => "see below".to_string(),
                value => format!("`{}`", bare(value)),
            };
            keys.push(Key {
                path: path.clone(),
                kind: self.kind(property),
                default: (!must).then_some(default),
                doc: describe(property) + &self.options(target),
                on_resume: None,
            });
            self.collect(&path, target, keys);
            self.collect(&format!("{path}[]"), self.resolve(&target["items"]), keys);
            if let Some(section) = self.section_or_list(target) {
                self.collect(&path, section, keys);
            }
            for (name, inner) in target["oneOf"].as_array().into_iter().flatten().filter_map(named_section) {
                self.collect(&format!("{path}.{name}"), self.resolve(inner), keys);
            }
        }
    }

    /// The section of a key that takes one section or a list of them.
    fn section_or_list(&self, target: &'a Value) -> Option<&'a Value> {
        let [one, list] = &target["anyOf"].as_array()?[..] else { return None };
        let section = self.resolve(one);
        (list["type"] == "array" && std::ptr::eq(self.resolve(&list["items"]), section)).then_some(section)
    }

    /// Follows references, and unwraps an optional value.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
            return self.resolve(&self.root["$defs"][name]);
        }
        match schema["anyOf"].as_array() {
            Some(options) if options.iter().any(|o| o["type"] == "null") => {
                options.iter().find(|o| o["type"] != "null").map_or(schema, |o| self.resolve(o))
            }
            _ => schema,
        }
    }

    /// The meanings of an enumeration's options.
    fn options(&self, schema: &'a Value) -> String {
        let options = schema["oneOf"].as_array().or(schema["anyOf"].as_array()).into_iter().flatten();
        let texts: Vec<_> = options.map(|o| format!(" {}: {}", self.alternative(o), describe(o))).collect();
        if texts.len() > 1 { texts.concat() } else { String::new() }
    }

    fn alternative(&self, option: &'a Value) -> String {
        named_section(option).map_or_else(|| self.kind(option), |(name, _)| format!("a section `{name}`"))
    }

    /// The values that a schema admits, in words.
    fn kind(&self, schema: &'a Value) -> String {
        let schema = self.resolve(schema);
        if let Some(options) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
            return alternatives(options.iter().map(|option| self.alternative(option)).collect());
        }
        if let Some(options) = schema["enum"].as_array() {
            return alternatives(options.iter().map(|value| format!("`{}`", bare(value))).collect());
        }
        if !schema["const"].is_null() {
            return format!("`{}`", bare(&schema["const"]));
        }
        let name = match &schema["type"] {
            Value::Array(names) => names.iter().find(|name| *name != "null").unwrap_or(&Value::Null),
            name => name,
        };
        match name.as_str() {
            Some("integer") if schema["minimum"] == 0 => "a whole number from 0".into(),
            Some("integer") => "a whole number".into(),
            Some("number") => "a number".into(),
            Some("string") => "text".into(),
            Some("boolean") => "`true` or `false`".into(),
            Some("array") => match schema["minItems"].as_u64() {
                Some(count) => format!("a list of {count}"),
                None => match self.kind(&schema["items"]) {
                    options if options.starts_with('`') => format!("a list of {options}"),
                    _ => "a list".into(),
                },
            },
            Some("object") => "a section".into(),
            _ => "a map".into(),
        }
    }
}

/// The name and the schema of an alternative that is a section under its one key, as serde writes the variant of an
/// enumeration with data.
fn named_section(option: &Value) -> Option<(&str, &Value)> {
    let properties = option["properties"].as_object().filter(|it| it.len() == 1)?;
    let (name, inner) = properties.iter().next()?;
    (option["required"] == serde_json::json!([name])).then_some((name.as_str(), inner))
}

/// "a", "a or b", "a, b or c".
pub(super) fn alternatives(mut options: Vec<String>) -> String {
    match (options.pop(), options.is_empty()) {
        (Some(last), false) => format!("{} or {last}", options.join(", ")),
        (last, _) => last.unwrap_or_default(),
    }
}

fn describe(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().replace('\n', " ")
}

fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}
