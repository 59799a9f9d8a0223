//! A served model's answer, as a client reads it.

use nestor_plugin::Message;
use serde_json::{Value, json};

/// The first choice of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The message of the assistant: its content, and its calls of tools.
    pub message: Message,
    /// The same as the text of a model that writes calls as Hermes does.
    pub text: String,
    /// The response reached its limit of tokens.
    pub cut: bool,
    /// Tokens of the prompt; none where the server does not count.
    pub prompt_tokens: Option<usize>,
    /// Tokens of the response, its end included; none where the server does not count.
    pub tokens: Option<usize>,
}

impl Said {
    /// Reads the body of an answer; none where it has another form.
    pub fn read(body: &Value) -> Option<Self> {
        let choice = body["choices"].get(0)?;
        let said = choice["message"].as_object()?;
        let content = said.get("content").and_then(Value::as_str).unwrap_or_default();
        let calls = said.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
        let mut message = Message::new("assistant", content);
        let mut text = content.to_string();
        if let Some(calls) = calls {
            message.keys.insert("tool_calls".into(), json!(calls));
            for call in calls {
                let separator = if text.is_empty() { "" } else { "\n" };
                text += &format!("{separator}<tool_call>\n{}\n</tool_call>", as_text(&call["function"]));
            }
        }
        let count = |name: &str| body["usage"][name].as_u64().map(|count| count as usize);
        Some(Self {
            message,
            text,
            cut: choice["finish_reason"] == "length",
            prompt_tokens: count("prompt_tokens"),
            tokens: count("completion_tokens"),
        })
    }
}

/// A call of a function as a model writes it: with arguments that are an object, where they can be read.
fn as_text(function: &Value) -> Value {
    let arguments = match &function["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        other => other.clone(),
    };
    json!({ "name": function["name"], "arguments": arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::parse;

    #[test]
    fn calls_become_the_text_that_a_model_writes() {
        let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } });
        let body = json!({
            "choices": [{ "message": { "role": "assistant", "content": "I look.", "tool_calls": [call] }, "finish_reason": "tool_calls" }],
            "usage": { "prompt_tokens": 3, "completion_tokens": 5 },
        });
        let said = Said::read(&body).expect("an answer");
        assert_eq!((said.cut, said.prompt_tokens, said.tokens), (false, Some(3), Some(5)));
        let parsed = parse(&said.text);
        assert_eq!((parsed.content.as_str(), parsed.calls.len(), parsed.broken), ("I look.", 1, false));
        assert_eq!(parsed.calls[0].1["a"], 1);
        assert_eq!(said.message.keys["tool_calls"][0]["id"], "c");
        let cut = Said::read(&json!({ "choices": [{ "message": { "content": null }, "finish_reason": "length" }] }));
        assert_eq!(cut.map(|said| (said.cut, said.text, said.tokens)), Some((true, String::new(), None)));
        assert_eq!(Said::read(&json!({ "error": {} })), None);
    }
}
