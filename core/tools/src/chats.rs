//! Chats of the command line: `--chat` of `nestor generate` and `nestor tokenize`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_images::{KeyedImage, read_image};
use nestor_plugin::files::SMALL;
use serde_json::Value;

use crate::input_error;
use crate::tokenizer::{IMAGE, Message};

/// The form of a chat, for messages.
const FORM: &str = "a chat is [{\"role\": …, \"content\": …}, …], or {\"messages\": […], \"tools\": […]}";

/// One chat, with a placeholder in its texts for each of its images.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    pub messages: Vec<Message>,
    /// Descriptions of functions as the chat template gets them; none where the chat has no list of them.
    pub tools: Option<Vec<Value>>,
    pub images: Vec<KeyedImage>,
}

/// The chats of one argument.
#[derive(Debug, Clone)]
pub struct Chats {
    pub chats: Vec<Chat>,
    /// True if the argument is a list of chats, also where it holds one.
    pub batch: bool,
}

/// Reads an argument of `--chat`: JSON if it begins with `[` or `{`, a file if it ends in `.json` or `.jsonl`, else the text
/// of one message of the user. JSON is one chat or a list of chats, and each line of a `.jsonl` file is one. Paths of images
/// count from the file's folder.
pub fn read(argument: &str) -> Result<Chats> {
    let path = Path::new(argument);
    let folder = path.parent().unwrap_or(Path::new(""));
    match path.extension().and_then(|extension| extension.to_str()) {
        _ if argument.trim_start().starts_with(['[', '{']) => {
            let value = serde_json::from_str(argument)
                .map_err(|error| input_error!("--chat: {error}; it begins as JSON does, and {FORM}"))?;
            of_value(&value, Path::new("")).context("--chat")
        }
        Some("json") => {
            let value = serde_json::from_str(&text_of(path)?)
                .map_err(|error| input_error!("{}: {error}; {FORM}", path.display()))?;
            of_value(&value, folder).with_context(|| path.display().to_string())
        }
        Some("jsonl") => {
            let text = text_of(path)?;
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let chat = |(number, line)| {
                let place = || format!("{}, line {}", path.display(), number + 1);
                let value = serde_json::from_str(line).map_err(|error| input_error!("{}: {error}; {FORM}", place()))?;
                chat(&value, folder).with_context(place)
            };
            Ok(Chats { chats: lines.map(chat).collect::<Result<_>>()?, batch: true })
        }
        _ if path.is_file() => Err(input_error!(
            "--chat {argument}: it names a file; a file of chats ends in .json or .jsonl, and its text is \"$(cat FILE)\""
        )),
        _ => {
            let messages = vec![Message::new("user", argument)];
            Ok(Chats { chats: vec![Chat { messages, ..Chat::default() }], batch: false })
        }
    }
}

fn text_of(path: &Path) -> Result<String> {
    nestor_plugin::files::read_to_string(path, SMALL).map_err(|error| input_error!("{}: {error}", path.display()))
}

/// One chat or a list of chats.
fn of_value(value: &Value, folder: &Path) -> Result<Chats> {
    let is_chat = |value: &Value| value.is_array() || value.get("messages").is_some();
    match value.as_array().filter(|list| !list.is_empty() && list.iter().all(is_chat)) {
        None => Ok(Chats { chats: vec![chat(value, folder)?], batch: false }),
        Some(list) => {
            let chat = |(number, value)| chat(value, folder).with_context(|| format!("chat {}", number + 1));
            Ok(Chats { chats: list.iter().enumerate().map(chat).collect::<Result<_>>()?, batch: true })
        }
    }
}

fn chat(value: &Value, folder: &Path) -> Result<Chat> {
    let (messages, tools) = match value {
        Value::Object(object) => {
            if let Some(other) = object.keys().find(|key| !["messages", "tools"].contains(&key.as_str())) {
                return Err(input_error!("the key `{other}` is unknown; {FORM}"));
            }
            (object.get("messages"), object.get("tools").filter(|tools| !tools.is_null()))
        }
        list => (Some(list), None),
    };
    let Some(messages) = messages.and_then(Value::as_array) else { return Err(input_error!("{FORM}")) };
    let tools = tools.map(|tools| tools.as_array().cloned().ok_or_else(|| input_error!("`tools` must be a list")));
    let mut chat = Chat { tools: tools.transpose()?, ..Chat::default() };
    for (number, message) in messages.iter().enumerate() {
        let message = read_message(message, folder, &mut chat.images);
        chat.messages.push(message.with_context(|| format!("message {}", number + 1))?);
    }
    Ok(chat)
}

/// A message whose keys reach the chat template as they are, but for a content in parts.
fn read_message(value: &Value, folder: &Path, images: &mut Vec<KeyedImage>) -> Result<Message> {
    let mut message: Message = serde_json::from_value(value.clone())
        .map_err(|error| input_error!("{error}; a message is {{\"role\": …, \"content\": …}}"))?;
    let content = match message.keys.get("content") {
        Some(Value::String(_)) => return Ok(message),
        None | Some(Value::Null) if message.keys.get("tool_calls").is_some_and(Value::is_array) => return Ok(message),
        Some(Value::Array(parts)) => {
            parts.iter().map(|part| text_of_part(part, folder, images)).collect::<Result<String>>()?
        }
        None => return Err(input_error!("missing field `content`")),
        Some(_) => return Err(unknown_content()),
    };
    message.set_content(content);
    Ok(message)
}

fn text_of_part(part: &Value, folder: &Path, images: &mut Vec<KeyedImage>) -> Result<String> {
    match (part["type"].as_str(), part["text"].as_str(), part["image"].as_str().map(PathBuf::from)) {
        (Some("text"), Some(text), None) => Ok(text.to_string()),
        (Some("image"), None, Some(image)) => {
            images.push(read_image(&folder.join(image))?);
            Ok(IMAGE.to_string())
        }
        _ => Err(unknown_content()),
    }
}

fn unknown_content() -> anyhow::Error {
    input_error!(
        "a content is a text, or a list of {{\"type\": \"text\", \"text\": …}} and {{\"type\": \"image\", \"image\": FILE}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;

    #[test]
    fn an_argument_has_one_meaning() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).map(|()| path.display().to_string())
        };
        let one = r#"[{"role": "user", "content": "a"}]"#;
        let tools = r#"{"messages": [{"role": "user", "content": "a"}], "tools": [{"b": 1, "a": 2}]}"#;
        let (json, lines) = (file("c.json", one)?, file("c.jsonl", &format!("{one}\n\n{tools}\n"))?);
        for (argument, count, batch) in [
            ("hello", 1, false),
            ("", 1, false),
            (one, 1, false),
            (tools, 1, false),
            (&format!("[{one}, {tools}]"), 2, true),
            (&format!("[{one}]"), 1, true),
            (&json, 1, false),
            (&lines, 2, true),
        ] {
            let read = read(argument)?;
            assert_eq!((read.chats.len(), read.batch), (count, batch), "{argument}");
            assert_eq!(read.chats[0].messages[0].role, "user");
        }
        assert_eq!(read("no.json/x y")?.chats[0].messages[0].content(), "no.json/x y");
        assert_eq!(Value::from(read(tools)?.chats[0].tools.clone()).to_string(), r#"[{"b":1,"a":2}]"#);
        for (argument, why) in [
            ("[hello", "it begins as JSON does"),
            ("{}", "a chat is"),
            ("[1]", "a message is"),
            (r#"{"messages": [], "tool": []}"#, "`tool` is unknown"),
            (r#"{"messages": [], "tools": 1}"#, "`tools` must be a list"),
            (r#"[{"role": "user"}]"#, "message 1: missing field `content`"),
            (r#"[{"content": "a"}]"#, "missing field `role`"),
            (r#"[{"role": "user", "content": [{"type": "audio"}]}]"#, "a content is a text"),
            ("none.json", "none.json: No such file"),
            (&file("chat.txt", one)?, "ends in .json or .jsonl"),
            (&file("d.jsonl", &format!("{one}\n{{}}"))?, "d.jsonl, line 2: a chat is"),
        ] {
            let error = read(argument).expect_err(why);
            assert!(error.chain().any(|cause| cause.is::<InputError>()), "{error:#}");
            assert!(format!("{error:#}").contains(why), "{error:#}");
        }
        Ok(())
    }
}
