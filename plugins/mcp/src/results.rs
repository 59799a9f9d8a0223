//! Results of tools as text, as numbers and as keys of states.

use nestor_plugin::Message;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Keys of a structured result that may hold its number.
const NUMBERS: [&str; 3] = ["result", "reward", "score"];

/// A result as text: its texts, and the names of its images, sounds and files.
pub fn text(result: &CallToolResult) -> String {
    let blocks: Vec<String> = result.content.iter().map(block).collect();
    match (&result.structured_content, blocks.is_empty()) {
        (Some(structured), true) => structured.to_string(),
        _ => blocks.join("\n"),
    }
}

fn block(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a sound, {}]", audio.mime_type),
        ContentBlock::ResourceLink(link) => format!("[a file, {}]", link.uri),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[a file, {uri}]\n{text}"),
            ResourceContents::BlobResourceContents { uri, .. } => format!("[a file without text, {uri}]"),
            _ => "[a file]".into(),
        },
        _ => "[content of a kind that is not shown]".into(),
    }
}

/// The number that a result is; none where it is none.
pub fn number(result: &CallToolResult) -> Option<f64> {
    let of = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
        _ => None,
    };
    let structured = result.structured_content.as_ref();
    let found = structured.and_then(|value| of(value).or_else(|| NUMBERS.iter().find_map(|key| of(value.get(key)?))));
    let read = || of(&serde_json::from_str(text(result).trim()).ok()?);
    found.or_else(read).filter(|number| number.is_finite())
}

/// A text of at most `most` characters, with a note where it was cut.
pub fn cut(text: String, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text;
    }
    let kept: String = text.chars().take(most).collect();
    format!("{kept}\n[cut: {} of {count} characters are left out]", count - most)
}

/// The key of the state behind some results of tools.
pub fn anchor(results: &[Message]) -> Vec<u8> {
    digest(&results.iter().map(|result| Value::from(result.content())).collect())
}

/// The key of the state that a conversation begins in.
pub fn first_anchor(messages: &[Message], tools: &[Value]) -> Vec<u8> {
    digest(&json!([messages, tools]))
}

fn digest(of: &Value) -> Vec<u8> {
    let hex = |byte: &u8| format!("{byte:02x}");
    Sha256::digest(of.to_string().as_bytes())[..16].iter().map(hex).collect::<String>().into_bytes()
}
