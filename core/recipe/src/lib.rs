//! The YAML of a run: structs, merging, and errors that say where.
//!
//! A recipe is read in four steps: parsed with the place of every key (`tree`), laid on the recipe it `extends`,
//! changed by `--set` arguments, and turned into [`Recipe`] with every key checked (`check`).

mod check;
mod error;
mod keys;
mod recompute;
mod schema;
#[cfg(test)]
mod tests;
mod tree;
mod update;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use error::InputError;
pub use keys::{Key, json_schema, keys, markdown};
pub use recompute::Recompute;
pub use schema::*;
use tree::{Node, Place};
pub use update::*;

/// Most recipes in a chain of `extends`.
const MAX_EXTENDS: usize = 16;

/// Gives the text of a file, and the one path it is known by however it was named.
pub type ReadText<'a> = &'a dyn Fn(&Path) -> std::io::Result<(PathBuf, String)>;

/// Reads a recipe, lays it on those it extends, applies `--set key.path=value` arguments and checks every key.
pub fn load(path: &Path, sets: &[String]) -> Result<Recipe> {
    load_with(path, sets, &|path| Ok((path.canonicalize()?, std::fs::read_to_string(path)?)))
}

/// [`load`] from files that need not lie on a disk.
pub fn load_with(path: &Path, sets: &[String], read_text: ReadText) -> Result<Recipe> {
    let mut root = read_file(path, None, read_text, &mut Vec::new())?;
    tree::set_all(&mut root, sets)?;
    check::read(&root, &Place::start_of(&path.display().to_string()))
}

impl Recipe {
    /// The resolved recipe; loading it gives the same recipe again.
    pub fn to_yaml(&self) -> Result<String> {
        serde_yaml::to_string(self).context("could not write the recipe as YAML")
    }

    /// Combinations that are allowed but rarely meant.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let truncated = self.rollout.top_k > 0 || self.rollout.top_p < 1.0;
        if truncated && self.update.old_logprobs == OldLogprobs::Rollout {
            warnings.push(
                "rollout.top_k or rollout.top_p cuts the sampling distribution, but log-probs are those of the whole \
                 distribution: the ratio of update.old_logprobs: rollout does not correct for the cut"
                    .into(),
            );
        }
        if self.rollout.group_size == 1 {
            warnings
                .push("rollout.group_size is 1: an estimator that compares a group's episodes learns nothing".into());
        }
        if self.eval.split == self.rollout.split {
            warnings.push(format!(
                "eval.split and rollout.split are both `{}`: evaluation then plays tasks that were trained on",
                self.eval.split
            ));
        }
        warnings
    }
}

impl Rollout {
    /// Whether an episode is one conversation.
    pub fn is_transcript(&self) -> bool {
        self.history.mode == HistoryMode::Transcript
    }

    /// Steps of history that a prompt template gets: none in a transcript.
    pub fn history_length(&self) -> usize {
        if self.is_transcript() { 0 } else { self.history.length.unwrap_or(2) }
    }

    /// Longest sequence in tokens, the last response included.
    pub fn max_tokens(&self) -> usize {
        self.max_sequence_tokens.unwrap_or(self.max_prompt_tokens.saturating_add(self.max_response_tokens))
    }
}

/// One file with everything it extends; `open` holds the files that are being read, outermost first.
fn read_file(path: &Path, from: Option<&Place>, read_text: ReadText, open: &mut Vec<PathBuf>) -> Result<Node> {
    let name = path.display().to_string();
    let start = Place::start_of(&name);
    let mention = from.map_or(String::new(), |place| format!("{place}: "));
    let (real, text) = read_text(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => input_error!("{mention}there is no recipe {name}"),
        _ => input_error!("{mention}could not read the recipe {name}: {error}"),
    })?;
    if open.contains(&real) {
        return Err(input_error!("{mention}{name} extends itself"));
    }
    if open.len() == MAX_EXTENDS {
        return Err(input_error!("{mention}{MAX_EXTENDS} recipes extend each other; lay some of them together"));
    }
    open.push(real);

    let Node::Map(mut map) = tree::parse(&text, &start)? else {
        return Err(input_error!("{start}: a recipe is a map of keys, such as `iterations: 100`"));
    };
    let extends = map.iter().position(|entry| entry.key == "extends").map(|index| map.remove(index));
    let mut node = Node::Map(map);
    if let Some(extends) = extends {
        let Node::Scalar(serde_json::Value::String(other)) = extends.node else {
            return Err(input_error!("{}: `extends` must be the path of one recipe", extends.place));
        };
        let base = path.parent().unwrap_or(Path::new("")).join(other);
        node = tree::merge(read_file(&base, Some(&extends.place), read_text, open)?, node);
    }
    open.pop();
    Ok(node)
}
