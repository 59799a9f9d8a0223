//! Calls of tools in the text of a model, in the form of Qwen2.5, Qwen3 and Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use nestor_plugin::Message;
use serde_json::{Map, Value, json};

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// The text of a response, taken apart.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The text outside of the calls; the whole text where it has none, or a broken one.
    pub content: String,
    /// Name and arguments of each call.
    pub calls: Vec<(String, Map<String, Value>)>,
    /// The text begins a call that is cut or no JSON of the right form. All of it is content then.
    pub broken: bool,
}

impl Parsed {
    /// A text where no tools may be called.
    pub fn of_text(text: &str) -> Self {
        Self { content: text.to_string(), calls: Vec::new(), broken: false }
    }

    /// The message of the assistant; `step` makes the ids of its calls unique in a conversation.
    pub fn message(&self, step: u32) -> Message {
        let mut message = Message::new("assistant", self.content.clone());
        if !self.calls.is_empty() {
            if self.content.is_empty() {
                message.keys.insert("content".into(), Value::Null);
            }
            let call = |(number, (name, arguments)): (usize, &(String, Map<String, Value>))| {
                let arguments = Value::Object(arguments.clone()).to_string();
                json!({ "id": format!("call_{step}_{number}"), "type": "function",
                        "function": { "name": name, "arguments": arguments } })
            };
            message.keys.insert("tool_calls".into(), self.calls.iter().enumerate().map(call).collect());
        }
        message
    }
}

/// Takes the text of a response apart.
pub fn parse(text: &str) -> Parsed {
    let whole = |broken| Parsed { broken, ..Parsed::of_text(text) };
    if !text.contains(BEGIN) {
        return whole(false);
    }
    let (mut content, mut calls, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let Some((call, behind)) = after.split_once(END) else { return whole(true) };
        let Some(read) = read(call) else { return whole(true) };
        content.push_str(before.trim());
        calls.push(read);
        rest = behind;
    }
    content.push_str(rest.trim());
    Parsed { content, calls, broken: false }
}

/// One call. Hermes' models may write the arguments as a text of JSON.
fn read(call: &str) -> Option<(String, Map<String, Value>)> {
    let call: Map<String, Value> = serde_json::from_str(call.trim()).ok()?;
    let name = call.get("name")?.as_str().filter(|name| !name.is_empty())?.to_string();
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(_) => return None,
    };
    Some((name, arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_and_the_text_around_them_stays() {
        let parsed = parse(
            "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}\n</tool_call>\n<tool_call>{\"arguments\": \"{}\", \"name\": \"g\"}</tool_call>",
        );
        let names: Vec<_> = parsed.calls.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((parsed.content.as_str(), names, parsed.broken), ("I look.", vec!["f", "g"], false));
        let message = parsed.message(3);
        assert_eq!(message.keys["tool_calls"][1]["id"], "call_3_1");
        assert_eq!(message.keys["tool_calls"][0]["function"]["arguments"], "{\"a\":[1,\"x\"]}");
        let only = parse("<tool_call>{\"name\": \"f\"}</tool_call>");
        assert!(only.message(0).keys["content"].is_null());
    }

    #[test]
    fn a_partial_or_broken_call_stays_text() {
        for text in [
            "a <tool_call>{\"name\": \"f\"",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> <tool_call>",
            "<tool_call>f(1)</tool_call>",
            "<tool_call>{\"name\": \"\"}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{\"}</tool_call>",
            "<tool_call>[]</tool_call>",
        ] {
            assert_eq!(parse(text), Parsed { content: text.into(), calls: Vec::new(), broken: true });
        }
        assert_eq!(parse(" plain\n").message(0), Message::new("assistant", " plain\n"));
    }
}
