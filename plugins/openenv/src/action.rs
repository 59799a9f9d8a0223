//! Turns a response of the policy into the fields of an action.

use anyhow::{Result, anyhow, ensure};
use nestor_plugin::parse::think_action;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::wire::start;

/// Characters at the end of a response without tags that count as its action, as in ALFWorld.
const TAIL: usize = 30;
/// The most fields that an error lists.
const SHOWN: usize = 20;

/// The form of the actions that a server takes.
#[derive(Debug, Clone)]
pub struct Actions {
    /// The field that takes the action's text.
    field: Field,
    extra: Map<String, Value>,
    tool: Option<String>,
    raw: bool,
}

/// A field of the server's actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// It takes text; other fields take the JSON value that the text is.
    pub is_text: bool,
}

/// The action in a response.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The action's text.
    pub text: String,
    /// The response had the right form.
    pub valid: bool,
    /// The fields to send; none where the text is not a value that the field takes.
    pub fields: Option<Map<String, Value>>,
}

impl Actions {
    /// The form for a field and a config.
    pub fn new(config: &Config, field: Field) -> Self {
        Self { field, extra: config.action_extra.clone(), tool: config.tool.clone(), raw: config.raw }
    }

    /// The name of the field that takes the action's text.
    pub fn field(&self) -> &str {
        &self.field.name
    }

    /// Parses a response.
    pub fn parse(&self, response: &str) -> Parsed {
        let (text, valid) = if self.raw { (response.to_string(), true) } else { tagged(response) };
        let value = match self.field.is_text {
            true => Some(Value::String(text.clone())),
            false => serde_json::from_str(text.trim()).ok(),
        };
        Parsed { valid: valid && value.is_some(), fields: value.map(|value| self.fields(value)), text }
    }

    fn fields(&self, value: Value) -> Map<String, Value> {
        let mut fields = self.extra.clone();
        fields.insert(self.field.name.clone(), value);
        match &self.tool {
            None => fields,
            Some(tool) => Map::from_iter([
                ("type".to_string(), json!("call_tool")),
                ("tool_name".to_string(), json!(tool)),
                ("arguments".to_string(), Value::Object(fields)),
            ]),
        }
    }

    /// Returns a valid response that carries an action.
    pub fn response(&self, action: &str) -> String {
        if self.raw { action.into() } else { format!("<think></think><action>{action}</action>") }
    }
}

/// The action by the rules of [`think_action`], which decides whether the response is valid. The text between the tags
/// keeps its case, since a server may tell `A` from `a`.
fn tagged(response: &str) -> (String, bool) {
    let parsed = think_action(response, TAIL);
    let lower = response.to_ascii_lowercase();
    let tags = lower.find("<action>").zip(lower.find("</action>"));
    let inside = tags.and_then(|(start, end)| response.get(start + "<action>".len()..end));
    (inside.map_or(parsed.text, |text| nestor_plugin::parse::strip(text).to_string()), parsed.valid)
}

/// Finds the field that takes the action's text in a JSON schema: the configured one, else the single required text
/// field. `place` names the schema in errors.
pub fn field(schema: &Value, config: &Config, place: &str) -> Result<Field> {
    let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(name) = &config.action {
        let known: Vec<String> = properties.keys().take(SHOWN).map(|name| start(name)).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let is_known = properties.contains_key(name) || known.is_empty();
        let hint = nestor_plugin::suggest(name, &known);
        ensure!(is_known, "config key `action`: {place} has no field `{}`{hint}", start(name));
        return Ok(Field { name: name.clone(), is_text: is_text(schema, properties.get(name)) });
    }
    let fits = |name: &str| {
        !config.action_extra.contains_key(name)
            && properties.get(name).is_some_and(|field| field.get("const").is_none() && is_text(schema, Some(field)))
    };
    let texts: Vec<&str> = required.iter().copied().filter(|name| fits(name)).collect();
    match texts[..] {
        [name] => Ok(Field { name: name.to_string(), is_text: true }),
        _ => {
            let shown: Vec<String> = properties
                .iter()
                .take(SHOWN)
                .map(|(name, field)| {
                    let kind = field.get("type").and_then(Value::as_str).unwrap_or("any type");
                    let required = if required.contains(&name.as_str()) { ", required" } else { "" };
                    format!("{} ({}{required})", start(name), start(kind))
                })
                .collect();
            let list = if shown.is_empty() { "none".to_string() } else { shown.join(", ") };
            Err(anyhow!(
                "{place} has {} required text fields, so name the field for the policy's action by config key `action`, and \
                 the others by `action_extra`; fields: {list}",
                texts.len()
            ))
        }
    }
}

/// True if a field of a schema takes text. A field of unknown type does.
fn is_text(schema: &Value, field: Option<&Value>) -> bool {
    let Some(field) = field else { return true };
    if let Some(name) = field.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/")) {
        // A definition that refers to another one is read as text.
        return schema.pointer(&format!("/$defs/{name}/type")).is_none_or(|kind| kind == "string");
    }
    match (field.get("type"), field.get("anyOf").and_then(Value::as_array)) {
        (Some(Value::String(kind)), _) => kind == "string",
        (Some(Value::Array(kinds)), _) => kinds.iter().any(|kind| kind == "string"),
        (_, Some(kinds)) => kinds.iter().any(|kind| kind.get("type").is_none_or(|kind| kind == "string")),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        nestor_plugin::parse_config(text).unwrap()
    }

    fn found(schema: &str, keys: &str) -> Result<Field> {
        field(&serde_json::from_str(schema).unwrap(), &config(&format!(r#"{{"url": "ws://h"{keys}}}"#)), "the action")
    }

    #[test]
    fn the_single_required_text_field_takes_the_action() {
        let schema = r##"{"properties": {"metadata": {"type": "object"}, "kind": {"const": "move", "type": "string"},
            "move": {"$ref": "#/$defs/Move"}, "note": {"type": "string"}, "id": {"type": "integer"}},
            "$defs": {"Move": {"enum": ["up"], "type": "string"}}, "required": ["kind", "move", "id"]}"##;
        assert_eq!(found(schema, "").unwrap(), Field { name: "move".into(), is_text: true });
        assert_eq!(found(schema, r#", "action": "id""#).unwrap(), Field { name: "id".into(), is_text: false });
        let error = found(schema, r#", "action": "mvoe""#).unwrap_err().to_string();
        assert!(error.contains("no field `mvoe`; did you mean `move`?"), "{error}");
        let two = schema.replace(r#""required": ["kind""#, r#""required": ["kind", "note""#);
        let error = found(&two, "").unwrap_err().to_string();
        assert!(error.contains("has 2 required text fields") && error.contains("note (string, required)"), "{error}");
        assert_eq!(found(&two, r#", "action_extra": {"note": "-"}"#).unwrap().name, "move");
    }

    #[test]
    fn responses_become_actions() {
        let text = Field { name: "text".into(), is_text: true };
        let actions = Actions::new(&config(r#"{"url": "ws://h", "action_extra": {"by": "me"}}"#), text.clone());
        let parsed = actions.parse("<think>x</think><Action> Go UP </ACTION>");
        assert_eq!((parsed.text.as_str(), parsed.valid), ("Go UP", true));
        assert_eq!(parsed.fields.map(Value::Object), Some(json!({"by": "me", "text": "Go UP"})));
        let parsed = actions.parse("no tags");
        assert_eq!((parsed.text.as_str(), parsed.valid, parsed.fields.is_some()), ("no tags", false, true));
        assert!(actions.parse(&actions.response("Go UP")).valid);

        let actions = Actions::new(&config(r#"{"url": "ws://h", "tool": "say", "raw": true}"#), text);
        let fields = actions.parse(" Hi ").fields.map(Value::Object);
        assert_eq!(fields, Some(json!({"type": "call_tool", "tool_name": "say", "arguments": {"text": " Hi "}})));

        let number = Field { name: "id".into(), is_text: false };
        let actions = Actions::new(&config(r#"{"url": "ws://h", "raw": true}"#), number);
        assert_eq!(actions.parse(" 7\n").fields.map(Value::Object), Some(json!({"id": 7})));
        let parsed = actions.parse("seven");
        assert_eq!((parsed.valid, parsed.fields), (false, None));
    }
}
