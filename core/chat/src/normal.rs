//! Messages that went through a client. Clients drop nulls, add empty keys, and write the arguments of a call anew; none of that makes
//! another message.

use nestor_plugin::Message;
use serde_json::{Map, Value};

/// The keys of a message that a chat template reads. Clients add others.
const KEPT: [&str; 7] = ["content", "tool_calls", "tool_call_id", "name", "reasoning_content", "thinking", "reasoning"];

/// True if two messages say the same.
pub fn same(a: &Message, b: &Message) -> bool {
    a.role == b.role && normal(a) == normal(b)
}

fn normal(message: &Message) -> Map<String, Value> {
    let mut keys = Map::new();
    for key in KEPT {
        let Some(value) = message.keys.get(key) else { continue };
        match (key, value) {
            (_, Value::Null) => {}
            (_, Value::String(text)) if text.is_empty() => {}
            ("tool_calls", Value::Array(calls)) if calls.is_empty() => {}
            ("tool_calls", Value::Array(calls)) => {
                keys.insert(key.into(), calls.iter().map(normal_call).collect());
            }
            _ => {
                keys.insert(key.into(), value.clone());
            }
        }
    }
    keys
}

fn normal_call(call: &Value) -> Value {
    let function = call.get("function").unwrap_or(call);
    let mut kept = Map::new();
    kept.insert("id".into(), call.get("id").cloned().unwrap_or_default());
    kept.insert("name".into(), function.get("name").cloned().unwrap_or_default());
    kept.insert("arguments".into(), arguments(function));
    Value::Object(kept)
}

/// The arguments of a call as a value: clients send them as text.
fn arguments(function: &Value) -> Value {
    match function.get("arguments") {
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone())),
        other => other.cloned().unwrap_or_default(),
    }
}

/// Messages as a chat template reads them: the arguments of a call as an object, as vLLM gives them to templates, and no nulls.
pub fn for_template(messages: &[Message]) -> Vec<Message> {
    messages.iter().map(prepared).collect()
}

fn prepared(message: &Message) -> Message {
    let mut message = message.clone();
    message.keys.retain(|_, value| !value.is_null());
    if let Some(Value::Array(calls)) = message.keys.get_mut("tool_calls") {
        for call in calls.iter_mut() {
            let function = if call.get("function").is_some() { &mut call["function"] } else { call };
            if let Some(object) = function.as_object_mut() {
                let read = arguments(&Value::Object(object.clone()));
                object.insert("arguments".into(), read);
            }
        }
        if calls.is_empty() {
            message.keys.remove("tool_calls");
        }
    }
    if !message.keys.contains_key("content") {
        message.set_content("");
    }
    message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(value: Value) -> Message {
        serde_json::from_value(value).expect("a message")
    }

    #[test]
    fn a_client_may_add_and_drop_keys_that_say_nothing() {
        let call = |arguments: Value| json!({ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": arguments } });
        let ours = message(json!({ "role": "assistant", "content": null, "tool_calls": [call(json!("{\"a\":1}"))] }));
        for theirs in [
            json!({ "role": "assistant", "tool_calls": [call(json!("{ \"a\": 1 }"))], "refusal": null, "audio": null }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call(json!({ "a": 1 }))], "annotations": [] }),
        ] {
            assert!(same(&ours, &message(theirs.clone())), "{theirs}");
        }
        for theirs in [
            json!({ "role": "assistant", "content": "x", "tool_calls": [call(json!("{\"a\":1}"))] }),
            json!({ "role": "assistant", "tool_calls": [call(json!("{\"a\":2}"))] }),
            json!({ "role": "assistant", "content": "" }),
            json!({ "role": "user", "tool_calls": [call(json!("{\"a\":1}"))] }),
        ] {
            assert!(!same(&ours, &message(theirs.clone())), "{theirs}");
        }
    }

    #[test]
    fn a_template_reads_arguments_as_an_object() {
        let calls = json!([{ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } }]);
        let ready = for_template(&[message(json!({ "role": "assistant", "content": null, "tool_calls": calls }))]);
        assert_eq!(ready[0].keys["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
        assert_eq!(ready[0].content(), "");
        let broken = json!([{ "function": { "name": "f", "arguments": "{\"a\":" } }]);
        let ready = for_template(&[message(json!({ "role": "assistant", "tool_calls": broken }))]);
        assert_eq!(ready[0].keys["tool_calls"][0]["function"]["arguments"], "{\"a\":");
    }
}
