//! Tokenizers for `tests/python/test_tokenizer.py`, which compares them with transformers.
//!
//! usage: tokens MODEL_DIR TEXTS.json · tokens --chats MODEL_DIR CHATS.json [true|false] · tokens --train OUT_DIR TEXTS.json VOCAB_SIZE
//!
//! TEXTS is a list of strings, CHATS a list of chats, each a list of messages or `{"messages": …, "tools": …}`. The first form prints the ids of texts and their decoded texts, the
//! second the ids of chats (with the thinking switch on or off), the third trains a tokenizer.

use std::path::Path;

use anyhow::Result;
use nestor_model::tokenizer::{Message, Tokenizer};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--train", out, texts, size] => {
            Tokenizer::train(read(texts)?.into_iter(), size.parse()?, false)?.save(Path::new(out))
        }
        ["--chats", model, chats, ref thinking @ ..] => {
            let thinking = thinking.first().map(|text| text.parse()).transpose()?;
            let tokenizer = Tokenizer::load(Path::new(model))?.with_thinking(thinking)?;
            let chats: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(chats)?)?;
            // A chat that the template refuses is null.
            let ids = |chat: &Value| -> Result<Option<Vec<u32>>> {
                let (messages, tools) =
                    if chat.is_array() { (chat, None) } else { (&chat["messages"], chat["tools"].as_array()) };
                let messages: Vec<Message> = serde_json::from_value(messages.clone())?;
                Ok(tokenizer.chat_with_tools(&messages, tools.map(Vec::as_slice), true).ok())
            };
            println!("{}", json!(chats.iter().map(ids).collect::<Result<Vec<_>>>()?));
            Ok(())
        }
        [model, texts] => {
            let tokenizer = Tokenizer::load(Path::new(model))?;
            let texts: Vec<Value> = read(texts)?.iter().map(|text| inspect(&tokenizer, text)).collect::<Result<_>>()?;
            println!("{}", json!({ "eos": tokenizer.eos(), "vocab_size": tokenizer.vocab_size(), "texts": texts }));
            Ok(())
        }
        _ => anyhow::bail!("the first lines of this file describe its usage"),
    }
}

fn read(texts: &str) -> Result<Vec<String>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(texts)?)?)
}

fn inspect(tokenizer: &Tokenizer, text: &str) -> Result<Value> {
    let ids = tokenizer.encode(text)?;
    Ok(json!({ "decoded": tokenizer.decode(&ids, false), "plain": tokenizer.decode(&ids, true), "ids": ids }))
}
