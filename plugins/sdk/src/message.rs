//! Messages of a chat: an observation may be a list of them.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The roles that a message may have.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The other keys as the chat template reads them: `content`, and perhaps `tool_calls` or `name`.
    #[serde(flatten)]
    pub keys: Map<String, Value>,
}

impl Message {
    /// A message with a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let mut message = Self { role: role.into(), keys: Map::new() };
        message.set_content(content);
        message
    }

    /// The text; empty for a message of tool calls alone.
    pub fn content(&self) -> &str {
        self.keys.get("content").and_then(Value::as_str).unwrap_or_default()
    }

    /// Replaces the text.
    pub fn set_content(&mut self, content: impl Into<String>) {
        self.keys.insert("content".into(), Value::String(content.into()));
    }

    /// The messages of a chat that asks for a response, from JSON as TRL, verl and OpenAI have it. A content that is a list of
    /// texts becomes their concatenation.
    ///
    /// # Errors
    /// When it is no list of objects with `role` and `content`, a role is unknown, a content is no text, a system message is
    /// not the first one, or the last message is not the user's or a tool's. The message names the place in the list.
    pub fn chat(value: &Value) -> Result<Vec<Self>> {
        let chat = Self::list(value)?;
        match chat.last() {
            Some(last) if last.role != "user" && last.role != "tool" => bail!(
                "the last of {} messages is the {}'s; the policy answers a message of the user or of a tool",
                chat.len(),
                last.role
            ),
            _ => Ok(chat),
        }
    }

    /// The messages of a chat, whoever said the last one.
    ///
    /// # Errors
    /// As [`Self::chat`], but for the last message.
    pub fn list(value: &Value) -> Result<Vec<Self>> {
        let list = value.as_array().with_context(|| format!("a chat is a list of messages, not {}", kind(value)))?;
        let mut chat = Vec::with_capacity(list.len());
        for (number, value) in list.iter().enumerate() {
            let message = Self::read(value).with_context(|| format!("message {} of {}", number + 1, list.len()))?;
            ensure!(
                message.role != "system" || number == 0,
                "message {} of {} is a second system message or a late one; only the first message may be the system's",
                number + 1,
                list.len()
            );
            chat.push(message);
        }
        ensure!(!chat.is_empty(), "the list of messages is empty; it needs at least one message of the user");
        Ok(chat)
    }

    fn read(value: &Value) -> Result<Self> {
        let object = value.as_object().with_context(|| {
            format!("a message is an object with `role` and `content`, not {}; a list must not mix forms", kind(value))
        })?;
        let Some(role) = object.get("role") else {
            let hint =
                if object.contains_key("from") { "; write `from` and `value` as `role` and `content`" } else { "" };
            bail!("it has no `role`{hint}");
        };
        let role = role
            .as_str()
            .filter(|role| ROLES.contains(role))
            .with_context(|| format!("the role {role} is unknown; known: {}", ROLES.join(", ")))?;
        let mut message = Self { role: role.into(), keys: object.clone() };
        message.keys.remove("role");
        let calls = object.get("tool_calls").is_some_and(|calls| !calls.is_null());
        match object.get("content") {
            Some(Value::String(_)) => {}
            None | Some(Value::Null) if calls => {}
            None => bail!("the message of role `{role}` has no `content`"),
            Some(Value::Array(parts)) => message.set_content(joined(parts)?),
            Some(other) => bail!("the content is {}; it must be a text", kind(other)),
        }
        Ok(message)
    }
}

/// A prompt template that leaves an observation of messages as it is, and is the given one for any other.
pub fn unless_chat(template: &str) -> String {
    let template = template.strip_suffix('\n').unwrap_or(template);
    format!("{{% if chat %}}{{{{ observation }}}}{{% else %}}{template}{{% endif %}}")
}

/// The texts of a content's parts, one after the other.
fn joined(parts: &[Value]) -> Result<String> {
    ensure!(!parts.is_empty(), "the content is an empty list; it must be a text");
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text") | None, Some(text)) => Ok(text.to_string()),
        (Some("text") | None, None) => bail!("a part of the content is no {{\"type\": \"text\", \"text\": …}}"),
        (Some(other), _) => bail!(
            "the content has a part of type `{other}`; only parts of type `text` are read, and images are those of the \
             observation"
        ),
    };
    parts.iter().map(text).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chat_keeps_roles_order_and_further_keys() -> Result<()> {
        let calls = json!([{ "type": "function", "function": { "name": "z", "arguments": { "b": 1, "a": 2 } } }]);
        let chat = Message::chat(&json!([
            { "role": "system", "content": "s" },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": null, "tool_calls": calls },
            { "role": "tool", "content": "3", "name": "z" },
        ]))?;
        let roles: Vec<_> = chat.iter().map(|message| (message.role.as_str(), message.content())).collect();
        assert_eq!(roles, [("system", "s"), ("user", "ab"), ("assistant", ""), ("tool", "3")]);
        assert_eq!(chat[2].keys["tool_calls"].to_string(), calls.to_string());
        assert_eq!((chat[2].keys["content"].is_null(), &chat[3].keys["name"]), (true, &json!("z")));
        Ok(())
    }

    #[test]
    fn a_chat_that_asks_for_no_response_is_refused_by_name() {
        let user = json!({ "role": "user", "content": "a" });
        for (chat, why) in [
            (json!([]), "is empty"),
            (json!("a"), "not a text"),
            (json!([user, "b"]), "message 2 of 2: a message is an object"),
            (json!([{ "content": "a" }]), "no `role`"),
            (json!([{ "from": "human", "value": "a" }]), "write `from` and `value`"),
            (json!([{ "role": "human", "content": "a" }]), "role \"human\" is unknown; known: system, user"),
            (json!([{ "role": "User", "content": "a" }]), "role \"User\""),
            (json!([{ "role": 3, "content": "a" }]), "role 3 is unknown"),
            (json!([{ "role": "user" }]), "role `user` has no `content`"),
            (json!([{ "role": "user", "content": null }]), "the content is null"),
            (json!([{ "role": "user", "content": 3 }]), "the content is a number"),
            (json!([{ "role": "user", "content": [] }]), "an empty list"),
            (json!([{ "role": "user", "content": [{ "type": "image" }] }]), "a part of type `image`"),
            (json!([{ "role": "user", "content": [{ "type": "text" }] }]), "a part of the content"),
            (
                json!([user, { "role": "system", "content": "s" }]),
                "message 2 of 2 is a second system message or a late",
            ),
            (json!([user, { "role": "assistant", "content": "b" }]), "the last of 2 messages is the assistant's"),
            (json!([{ "role": "system", "content": "s" }]), "the last of 1 messages is the system's"),
        ] {
            let message = format!("{:#}", Message::chat(&chat).expect_err(why));
            assert!(message.contains(why), "{message}");
        }
    }
}
