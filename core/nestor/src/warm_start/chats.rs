//! Files of chats: JSON Lines (plain or gzip) or Parquet, a chat in each row.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use nestor_plugin::files;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::error::quietly;
use crate::input_error;
use crate::tokenizer::Message;

/// Most bytes of a file, and of its rows.
const MOST_BYTES: u64 = 4 << 30;

/// A chat of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// File and row, from 1, for messages.
    pub place: String,
    pub messages: Vec<Message>,
    /// Functions that the chat template describes to the model.
    pub tools: Option<Vec<Value>>,
    /// Messages before this one are a prompt: none of them is learned.
    pub learned_from: usize,
}

/// Chats of several files, and the SHA-256 sum of the files.
#[derive(Debug, Default)]
pub struct Chats {
    pub all: Vec<Chat>,
    pub sha256: String,
}

impl Chats {
    /// Reads files one after the other.
    ///
    /// # Errors
    /// A file that cannot be read, or the first row that is no chat, by file and row.
    pub fn read(paths: &[String]) -> Result<Self> {
        let (mut all, mut sum) = (Vec::new(), Sha256::new());
        for path in paths {
            let before = all.len();
            let bytes = files::read(Path::new(path), MOST_BYTES).map_err(|error| input_error!("{path}: {error}"))?;
            sum.update(&bytes);
            let rows = rows(path, bytes).map_err(|error| input_error!("{path}: {error:#}"))?;
            for (number, row) in rows.iter().enumerate() {
                let place = format!("{path}: row {}", number + 1);
                let chat = chat(&place, row).map_err(|error| input_error!("{place}: {error:#}"))?;
                all.push(chat);
            }
            if all.len() == before {
                return Err(input_error!("{path}: the file has no rows"));
            }
        }
        let sha256 = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { all, sha256 })
    }
}

/// The rows of a file as JSON.
fn rows(path: &str, bytes: Vec<u8>) -> Result<Vec<Value>> {
    let (name, gzip) = match path.strip_suffix(".gz") {
        Some(name) => (name, true),
        None => (path, false),
    };
    let bytes = match gzip {
        true => {
            let mut plain = Vec::new();
            let unpacked = MultiGzDecoder::new(&bytes[..]).take(MOST_BYTES + 1).read_to_end(&mut plain);
            unpacked.context("it is no whole gzip file")?;
            ensure!(plain.len() as u64 <= MOST_BYTES, "its rows have more than {} GiB", MOST_BYTES >> 30);
            plain
        }
        false => bytes,
    };
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("jsonl" | "ndjson") => json_lines(&bytes),
        Some("json") => match serde_json::from_slice(&bytes).context("it is no JSON")? {
            Value::Array(rows) => Ok(rows),
            _ => bail!("it is no list of rows; name a file with a JSON object in each line `.jsonl`"),
        },
        Some("parquet") => parquet_rows(bytes),
        _ => bail!("the name must end in .jsonl, .json or .parquet, or one of them with .gz"),
    }
}

fn json_lines(bytes: &[u8]) -> Result<Vec<Value>> {
    let text = std::str::from_utf8(bytes).context("it is no UTF-8")?.trim_start_matches('\u{feff}');
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| serde_json::from_str(line).with_context(|| format!("line {} is no JSON", number + 1)))
        .collect()
}

/// The crate `parquet` (60.1) panics at some damaged pages.
fn parquet_rows(bytes: Vec<u8>) -> Result<Vec<Value>> {
    let read = || -> Result<Vec<Value>> {
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).context("it is no whole Parquet file")?;
        reader.get_row_iter(None)?.map(|row| Ok(row?.to_json_value())).collect()
    };
    quietly(read).unwrap_or_else(|panic| bail!("it is damaged, copy or write it again: {panic}"))
}

/// A row with `messages`, or with `prompt` and `completion`. A prompt that is a text is the user's, and a completion the
/// assistant's.
fn chat(place: &str, row: &Value) -> Result<Chat> {
    let Value::Object(row) = row else { bail!("it is no object, but {row:.40}") };
    let given = |name: &str| row.get(name).filter(|value| !value.is_null());
    let said = |role: &str, value: &Value| match value {
        Value::String(text) => Ok(vec![Message::new(role, text)]),
        list => Message::list(list),
    };
    let (messages, learned_from) = match (given("messages"), given("prompt"), given("completion")) {
        (Some(messages), ..) => (Message::list(messages).context("column `messages`")?, 0),
        (None, Some(prompt), Some(completion)) => {
            let mut messages = said("user", prompt).context("column `prompt`")?;
            let learned_from = messages.len();
            messages.extend(said("assistant", completion).context("column `completion`")?);
            (messages, learned_from)
        }
        _ => bail!("it has no `messages`, and no `prompt` with `completion`; {}", columns(row)),
    };
    let answers = messages[learned_from..].iter().any(|message| message.role == "assistant");
    ensure!(answers, "it has no message of the assistant to learn from");
    let tools = match given("tools") {
        None => None,
        Some(Value::Array(tools)) => Some(tools.clone()),
        // Parquet files of several tools have them as a text, since their schemas differ.
        Some(Value::String(text)) => Some(serde_json::from_str(text).context("column `tools` is no list in JSON")?),
        Some(_) => bail!("column `tools` is no list"),
    };
    Ok(Chat { place: place.into(), messages, tools, learned_from })
}

fn columns(row: &Map<String, Value>) -> String {
    match row.is_empty() {
        true => "it has no columns".into(),
        false => {
            format!("its columns are {}", row.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// Writes a file and reads it back.
    fn read(name: &str, bytes: &[u8]) -> Result<Vec<Chat>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join(name);
        std::fs::write(&path, bytes)?;
        let read = Chats::read(&[path.display().to_string()]);
        read.map(|chats| chats.all).map_err(|error| {
            // Without the folder, whose name is random.
            anyhow::anyhow!(format!("{error:#}").replace(&format!("{}/", dir.path().display()), ""))
        })
    }

    const ROW: &str = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;

    #[test]
    fn all_forms_of_files_have_the_same_chats() -> Result<()> {
        let lines = format!("\u{feff}{ROW}\n\n{ROW}\n");
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(lines.as_bytes())?;
        let list = format!("[{ROW}, {ROW}]");
        for (name, bytes) in
            [("a.jsonl", lines.clone().into_bytes()), ("a.jsonl.gz", gzip.finish()?), ("a.json", list.into_bytes())]
        {
            let chats = read(name, &bytes)?;
            assert_eq!(chats.len(), 2, "{name}");
            let said: Vec<_> = chats[0].messages.iter().map(|it| (&*it.role, it.content())).collect();
            assert_eq!((said, chats[1].learned_from), (vec![("user", "a"), ("assistant", "b")], 0));
        }
        let rows = r#"{"prompt": "a", "completion": "b"}
            {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}],
             "completion": [{"role": "assistant", "content": "b"}], "tools": "[{\"name\": \"f\"}]"}"#;
        let chats = read("a.jsonl", rows.replace("\n             ", "").as_bytes())?;
        assert_eq!([chats[0].learned_from, chats[1].learned_from], [1, 2]);
        assert_eq!(chats[1].tools, Some(vec![serde_json::json!({"name": "f"})]));
        Ok(())
    }

    #[test]
    fn a_file_that_is_no_chat_is_refused_by_file_and_row() {
        let row = |text: &str| ("a.jsonl", format!("{ROW}\n{text}\n").into_bytes());
        for ((name, bytes), wanted) in [
            (("a.txt", ROW.into()), "a.txt: the name must end in .jsonl, .json or .parquet, or one of them with .gz"),
            (("a.jsonl", b"\n\n".to_vec()), "a.jsonl: the file has no rows"),
            (("a.jsonl", b"\xff".to_vec()), "a.jsonl: it is no UTF-8"),
            (
                ("a.json", ROW.into()),
                "a.json: it is no list of rows; name a file with a JSON object in each line `.jsonl`",
            ),
            (("a.json", b"{".to_vec()), "a.json: it is no JSON: "),
            (("a.jsonl.gz", ROW.into()), "a.jsonl.gz: it is no whole gzip file: "),
            (("a.parquet", ROW.into()), "a.parquet: it is no whole Parquet file: "),
            (row("{\"messages\""), "a.jsonl: line 2 is no JSON: "),
            (row("[1]"), "a.jsonl: row 2: it is no object, but [1]"),
            (row("{}"), "a.jsonl: row 2: it has no `messages`, and no `prompt` with `completion`; it has no columns"),
            (
                row(r#"{"text": "a", "prompt": "b"}"#),
                "row 2: it has no `messages`, and no `prompt` with `completion`; its columns are `text`, `prompt`",
            ),
            (row(r#"{"messages": "a"}"#), "row 2: column `messages`: a chat is a list of messages, not a text"),
            (row(r#"{"messages": []}"#), "row 2: column `messages`: the list of messages is empty"),
            (
                row(r#"{"messages": [{"from": "human", "value": "a"}]}"#),
                "message 1 of 1: it has no `role`; write `from` and `value` as `role` and `content`",
            ),
            (row(r#"{"messages": [{"role": "bot", "content": "a"}]}"#), "the role \"bot\" is unknown"),
            (
                row(r#"{"messages": [{"role": "user", "content": "a"}]}"#),
                "row 2: it has no message of the assistant to learn from",
            ),
            (
                row(r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#),
                "a part of type `image`; only parts of type `text` are read",
            ),
            (
                row(r#"{"prompt": 1, "completion": "a"}"#),
                "row 2: column `prompt`: a chat is a list of messages, not a number",
            ),
            (
                row(r#"{"prompt": "a", "completion": [{"role": "user", "content": "b"}]}"#),
                "row 2: it has no message of the assistant to learn from",
            ),
            (row(r#"{"prompt": "a", "completion": "b", "tools": "x"}"#), "row 2: column `tools` is no list in JSON"),
            (row(r#"{"prompt": "a", "completion": "b", "tools": 3}"#), "row 2: column `tools` is no list"),
        ] {
            let message = format!("{:#}", read(name, &bytes).expect_err(wanted));
            assert!(message.contains(wanted), "{message}\n  wanted: {wanted}");
        }
    }
}
