//! The check of configs that a component must refuse.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{Finding, passed};
use nestor_recipe::{InputError, input_error};

/// A key that no component has.
const UNKNOWN: &str = "nestor_check_unknown_key";

/// Opens a component with wrong configs. Each must be an error of the user, with a message.
pub fn check(config: &Value, schema: &Value, open: impl Fn(&Value) -> Result<()>) -> Result<Finding> {
    let mut wrong: Vec<(String, Value)> =
        [json!([]), json!("text"), json!(7), Value::Null].map(|c| ("a config that is no object".into(), c)).to_vec();
    let with = |key: &str, value: Value| {
        let mut changed = config.clone();
        changed[key] = value;
        changed
    };
    wrong.push(("an unknown key".into(), with(UNKNOWN, json!(1))));
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = of_wrong_type(property, schema) {
            wrong.push((format!("`{key}` of a wrong type"), with(key, value)));
        }
    }
    for (what, config) in &wrong {
        match open(config) {
            Ok(()) => bail!("{what} was accepted: {config}"),
            Err(error) if !error.chain().any(|cause| cause.is::<InputError>()) => {
                bail!("{what} ({config}) is an error of another kind than NESTOR_INPUT: {error:#}")
            }
            Err(error) => {
                let silent = format!("{error:#}").contains("failed without a message");
                ensure!(!silent, "{what} ({config}) is an error without a message");
            }
        }
    }
    passed(format!("{} wrong configs refused", wrong.len()))
}

/// A value that a property's schema does not allow; none if it allows all types, or does not say.
fn of_wrong_type(property: &Value, root: &Value) -> Option<Value> {
    let mut allowed = Vec::new();
    collect_types(property, root, &mut allowed, 0)?;
    let candidates = [("string", json!("x")), ("boolean", json!(true)), ("object", json!({})), ("array", json!([]))];
    candidates.into_iter().find(|(kind, _)| !allowed.iter().any(|other| other == kind)).map(|(_, value)| value)
}

/// Collects the types that a schema allows. None if it does not say.
fn collect_types(schema: &Value, root: &Value, types: &mut Vec<String>, depth: u32) -> Option<()> {
    if depth > 8 {
        return None;
    }
    let of_value = |value: &Value| {
        let name = match value {
            Value::String(_) => "string",
            Value::Bool(_) => "boolean",
            Value::Object(_) => "object",
            Value::Array(_) => "array",
            Value::Null => "null",
            Value::Number(_) => "number",
        };
        name.to_string()
    };
    if let Some(place) = schema["$ref"].as_str() {
        return collect_types(root.pointer(place.strip_prefix('#')?)?, root, types, depth + 1);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(any) = schema[key].as_array() {
            return any.iter().try_for_each(|one| collect_types(one, root, types, depth + 1));
        }
    }
    match (&schema["type"], &schema["enum"], schema.get("const")) {
        (Value::String(kind), ..) => types.push(kind.clone()),
        (Value::Array(kinds), ..) => types.extend(kinds.iter().filter_map(Value::as_str).map(String::from)),
        (_, Value::Array(values), _) => types.extend(values.iter().map(of_value)),
        (.., Some(value)) => types.push(of_value(value)),
        _ => return None,
    }
    Some(())
}

/// Refuses a config that is no object before a component is opened with it.
pub fn check_object(config: &Value) -> Result<()> {
    if config.is_object() { Ok(()) } else { Err(input_error!("the config must be an object, not {config}")) }
}
