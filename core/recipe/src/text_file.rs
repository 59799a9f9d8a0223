//! `rollout.template: {file: PATH}` and `rollout.system: {file: PATH}`: a file that holds the text.
//!
//! Such a path is first made relative to the working directory, where its recipe is known. The file is read when all
//! recipes and arguments are merged, so one that is replaced need not exist. A resolved recipe holds the text.

use std::path::Path;

use anyhow::Result;
use schemars::{Schema, json_schema};
use serde_json::Value;

use super::ReadText;
use super::tree::{Map, MapEntry, Node};
use crate::input_error;

/// Keys of `rollout` whose text may be a file.
const KEYS: [&str; 2] = ["template", "system"];

/// The form of such a key in a recipe file.
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": ["string", "null"], "description": "The text itself." },
        {
            "type": "object",
            "description": "`{file: PATH}`, the file that holds it. PATH is relative to the recipe, and in `--set` to the working \
                            directory.",
            "properties": { "file": { "type": "string" } },
            "required": ["file"],
            "additionalProperties": false,
        },
    ]})
}

/// Makes the path in a recipe of `folder` relative to the working directory.
pub(super) fn locate(root: &mut Map, folder: &Path) {
    for entry in entries(root) {
        let Node::Map(map) = &mut entry.node else { continue };
        for entry in map.iter_mut().filter(|entry| entry.key == "file") {
            if let Node::Scalar(Value::String(path)) = &mut entry.node {
                *path = folder.join(&path).display().to_string();
            }
        }
    }
}

/// Puts the files' texts in place of the sections that name them.
pub(super) fn read(root: &mut Node, read_text: ReadText) -> Result<()> {
    let Node::Map(root) = root else { return Ok(()) };
    entries(root).try_for_each(|entry| read_entry(entry, read_text))
}

fn read_entry(entry: &mut MapEntry, read_text: ReadText) -> Result<()> {
    let Node::Map(map) = &entry.node else { return Ok(()) };
    let file = match &map[..] {
        [MapEntry { key, location, node: Node::Scalar(Value::String(path)) }] if key == "file" => (location, path),
        _ => {
            return Err(input_error!(
                "{}: `rollout.{}` must be text or a section with the one key `file`, such as {{file: prompt.jinja}}",
                entry.location,
                entry.key
            ));
        }
    };
    let (location, path) = file;
    let (_, text) = read_text(Path::new(path)).map_err(|error| {
        input_error!(
            "{location}: could not read {path} of `rollout.{}`{}{error}; the path is relative to the recipe",
            entry.key,
            super::utf8::colon(&error)
        )
    })?;
    // A file from Windows gives the same prompts.
    entry.node = Node::Scalar(text.replace("\r\n", "\n").into());
    Ok(())
}

/// The entries of these keys.
fn entries(root: &mut Map) -> impl Iterator<Item = &mut MapEntry> {
    let rollout = root.iter_mut().find(|entry| entry.key == "rollout").and_then(|entry| match &mut entry.node {
        Node::Map(rollout) => Some(rollout),
        _ => None,
    });
    rollout.into_iter().flatten().filter(|entry| KEYS.contains(&entry.key.as_str()))
}
