//! `{file: PATH}` in place of the text of `rollout.template`, `rollout.system` and `estimator.teacher.template`: a file that holds it.
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

/// Keys whose text may be a file, with the sections that they are in.
const KEYS: [(&[&str], &str); 3] =
    [(&["rollout"], "template"), (&["rollout"], "system"), (&["estimator", "teacher"], "template")];

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
    for (_, entry) in entries(root) {
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
    entries(root).into_iter().try_for_each(|(name, entry)| read_entry(&name, entry, read_text))
}

fn read_entry(name: &str, entry: &mut MapEntry, read_text: ReadText) -> Result<()> {
    let Node::Map(map) = &entry.node else { return Ok(()) };
    let file = match &map[..] {
        [MapEntry { key, location, node: Node::Scalar(Value::String(path)) }] if key == "file" => (location, path),
        _ => {
            return Err(input_error!(
                "{}: `{name}` must be text or a section with the one key `file`, such as {{file: prompt.jinja}}",
                entry.location
            ));
        }
    };
    let (location, path) = file;
    let (_, text) = read_text(Path::new(path)).map_err(|error| {
        input_error!(
            "{location}: could not read {path} of `{name}`{}{error}; the path is relative to the recipe",
            super::utf8::colon(&error)
        )
    })?;
    // A file from Windows gives the same prompts.
    entry.node = Node::Scalar(text.replace("\r\n", "\n").into());
    Ok(())
}

/// The entries of these keys, with their names.
fn entries(root: &mut Map) -> Vec<(String, &mut MapEntry)> {
    let mut found = Vec::new();
    take(root, &mut Vec::new(), &mut found);
    found
}

/// Adds those of a section and of the sections in it. `path` leads to it.
fn take<'a>(map: &'a mut Map, path: &mut Vec<String>, found: &mut Vec<(String, &'a mut MapEntry)>) {
    for entry in map.iter_mut() {
        let is_key = KEYS.iter().any(|(sections, key)| *key == entry.key && sections.iter().eq(path.iter()));
        let leads_on = KEYS.iter().any(|(sections, _)| {
            sections.len() > path.len() && sections[..path.len()] == path[..] && sections[path.len()] == entry.key
        });
        if is_key {
            found.push(([&path[..], std::slice::from_ref(&entry.key)].concat().join("."), entry));
        } else if let (Node::Map(section), true) = (&mut entry.node, leads_on) {
            path.push(entry.key.clone());
            take(section, path, found);
            path.pop();
        }
    }
}
