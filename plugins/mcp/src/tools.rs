//! The server's tools: those that the policy may call, and those that only the environment calls.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use rmcp::model::Tool;
use serde_json::{Map, Value, json};

use crate::config::Config;

/// The tools of an environment.
#[derive(Debug, Default)]
pub struct Tools {
    /// As OpenAI has them, in the order to show.
    pub offered: Vec<Value>,
    /// The schemas of the arguments of those, by name.
    schemas: BTreeMap<String, Value>,
    /// The same for the tools that the policy does not see.
    hidden: BTreeMap<String, Value>,
}

impl Tools {
    /// Picks the tools that the config names.
    ///
    /// # Errors
    /// For a name that the server does not have, which the known ones are added to, and where no tool is left.
    pub fn choose(listed: Vec<Tool>, config: &Config) -> Result<Self> {
        let names: Vec<&str> = listed.iter().map(|tool| &*tool.name).collect();
        let known = |key: &str, name: &str| {
            let hint = || nestor_plugin::suggest(name, &names);
            ensure!(names.contains(&name), "config key `{key}`: the server has no tool `{name}`{}", hint());
            Ok(())
        };
        for (key, name) in config.hidden() {
            known(key, name)?;
        }
        for name in config.tools.iter().flatten() {
            known("tools", name)?;
            if let Some((key, _)) = config.hidden().find(|(_, hidden)| hidden == name) {
                anyhow::bail!("config keys `tools` and `{key}` both name `{name}`; the policy must not see that one");
            }
        }
        let is_hidden = |name: &str| config.hidden().any(|(_, hidden)| hidden == name);
        let wanted: Vec<&str> = match &config.tools {
            Some(wanted) => wanted.iter().map(String::as_str).collect(),
            None => names.iter().copied().filter(|name| !is_hidden(name)).collect(),
        };
        ensure!(!wanted.is_empty(), "the server has no tool that the policy may call");
        let mut tools = Self::default();
        for name in wanted {
            if let Some(tool) = listed.iter().find(|tool| tool.name == name) {
                tools.offer(tool);
            }
        }
        for tool in listed.iter().filter(|tool| is_hidden(&tool.name)) {
            tools.hidden.insert(tool.name.to_string(), json!(tool.input_schema));
        }
        Ok(tools)
    }

    fn offer(&mut self, tool: &Tool) {
        let schema = json!(tool.input_schema);
        let mut function = Map::from_iter([("name".to_string(), json!(tool.name))]);
        if let Some(description) = &tool.description {
            function.insert("description".into(), json!(description));
        }
        function.insert("parameters".into(), schema.clone());
        self.offered.push(json!({ "type": "function", "function": function }));
        self.schemas.insert(tool.name.to_string(), schema);
    }

    /// The names of the tools that the policy may call.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.schemas.keys().map(String::as_str)
    }

    pub fn offers(&self, name: &str) -> bool {
        self.schemas.contains_key(name)
    }

    /// True if arguments have the names that a schema requires and no others, and the kinds that it names. The server judges the rest.
    pub fn fits(&self, name: &str, arguments: &Map<String, Value>) -> bool {
        let Some(schema) = self.schemas.get(name) else { return false };
        let properties = schema["properties"].as_object();
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let closed = schema["additionalProperties"] == false;
        let fits = |(name, value): (&String, &Value)| match properties.and_then(|known| known.get(name)) {
            Some(property) => is_of_kind(value, &property["type"]),
            None => !closed,
        };
        required.into_iter().all(|name| arguments.contains_key(name)) && arguments.iter().all(fits)
    }

    /// The arguments that the schema of a hidden tool names; all where it names none.
    pub fn taken(&self, name: &str, mut arguments: Map<String, Value>) -> Map<String, Value> {
        if let Some(known) = self.hidden.get(name).and_then(|schema| schema["properties"].as_object()) {
            arguments.retain(|name, _| known.contains_key(name));
        }
        arguments
    }
}

/// True unless a schema's `type` is another kind than the value's.
fn is_of_kind(value: &Value, kind: &Value) -> bool {
    match kind {
        Value::Array(kinds) => kinds.iter().any(|kind| is_of_kind(value, kind)),
        Value::String(kind) => match kind.as_str() {
            "string" => value.is_string(),
            "number" => value.is_number(),
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            _ => true,
        },
        _ => true,
    }
}
