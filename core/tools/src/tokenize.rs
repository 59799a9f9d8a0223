//! `nestor tokenize`: the token ids of chats, as prompts of a model on disk.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::chats::{self, Chat};
use crate::model::Config;
use crate::model::vision::expand;
use crate::terminal;
use crate::tokenizer::Tokenizer;

/// Ids of the chat that the argument of `--chat` means, generation prompt included: `{"ids": […]}`, or `{"ids": [[…], …]}` of
/// several. Each image has as many ids as the model reads of it.
pub fn tokenize(dir: &Path, chat: &str, thinking: Option<bool>) -> Result<Value> {
    let tokenizer = Tokenizer::load(dir)?.with_thinking(thinking)?;
    for warning in tokenizer.template_warnings(dir) {
        terminal::warn(&format!("warning: {warning}"));
    }
    let read = chats::read(chat)?;
    let ids = |(number, chat): (usize, &Chat)| {
        let ids = tokenizer.chat_with_tools(&chat.messages, chat.tools.as_deref(), true);
        let ids = if read.batch { ids.with_context(|| format!("chat {}", number + 1))? } else { ids? };
        // A folder without images needs no config.json.
        if chat.images.is_empty() { Ok(ids) } else { expand(ids, &chat.images, &Config::load(dir)?) }
    };
    let mut all = read.chats.iter().enumerate().map(ids).collect::<Result<Vec<_>>>()?;
    Ok(if read.batch { json!({ "ids": all }) } else { json!({ "ids": all.pop().unwrap_or_default() }) })
}
