//! `rollout.template: {file: PATH}`: a file that holds the prompt template.
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

/// The form of `rollout.template` in a recipe file.
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": ["string", "null"], "description": "The template itself." },
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
    if let Some(MapEntry { node: Node::Map(map), .. }) = template(root) {
        for entry in map.iter_mut().filter(|entry| entry.key == "file") {
            if let Node::Scalar(Value::String(path)) = &mut entry.node {
                *path = folder.join(&path).display().to_string();
            }
        }
    }
}

/// Puts the file's text in place of the section that names it.
pub(super) fn read(root: &mut Node, read_text: ReadText) -> Result<()> {
    let Node::Map(root) = root else { return Ok(()) };
    let Some(entry) = template(root) else { return Ok(()) };
    let Node::Map(map) = &entry.node else { return Ok(()) };
    let file = match &map[..] {
        [MapEntry { key, location, node: Node::Scalar(Value::String(path)) }] if key == "file" => (location, path),
        _ => {
            return Err(input_error!(
                "{}: `rollout.template` must be text or a section with the one key `file`, such as {{file: prompt.jinja}}",
                entry.location
            ));
        }
    };
    let (location, path) = file;
    let (_, text) = read_text(Path::new(path)).map_err(|error| {
        input_error!(
            "{location}: could not read the prompt template {path}{}{error}; the path is relative to the recipe",
            super::utf8::colon(&error)
        )
    })?;
    entry.node = Node::Scalar(text.into());
    Ok(())
}

/// The entry of `rollout.template`.
fn template(root: &mut Map) -> Option<&mut MapEntry> {
    match &mut root.iter_mut().find(|entry| entry.key == "rollout")?.node {
        Node::Map(rollout) => rollout.iter_mut().find(|entry| entry.key == "template"),
        _ => None,
    }
}
