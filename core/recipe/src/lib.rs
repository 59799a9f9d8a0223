//! The YAML of a run: structs, merging, and errors with file, line and column.
//!
//! [`load`] reads a recipe in five steps: it parses the file with the location of every key (`tree`), lays the result on
//! the recipe that it `extends`, applies `--set` arguments, reads the files of prompt texts (`text_file`), and checks
//! the form (`check`) and the range (`ranges`) of every key.

mod check;
mod curriculum;
mod defaults;
mod environments;
mod error;
mod eval_tasks;
mod foreign;
mod hints;
mod keys;
mod location;
mod lora;
mod optimizer;
mod permissions;
mod plugin_config;
mod plugins;
mod ranges;
mod recompute;
mod resume;
mod saved;
mod schema;
mod secret;
mod text_file;
#[cfg(test)]
mod tests;
mod tree;
mod update;
mod utf8;
mod variables;
mod vision;
mod warm_start;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

pub use curriculum::{Curriculum, CurriculumMeasure};
pub use environments::EnvChoices;
pub use error::{InputError, Problem, all_of, lines};
pub use eval_tasks::EvalTasks;
pub use foreign::FOREIGN;
pub use keys::{Key, json_schema, keys, keys_of, table};
use location::Location;
pub use lora::{Lora, LoraInit, Projection};
pub use optimizer::*;
pub use permissions::OnResume;
pub use plugin_config::read_config;
pub use plugins::*;
pub use recompute::Recompute;
pub use resume::{Change, Changes, changes};
pub use saved::SAVED;
pub use schema::*;
pub use secret::masked;
use tree::{Map, Node};
pub use update::*;
pub use utf8::read_text;
pub use variables::escape;
use variables::{Lookup, of_environment};
pub use vision::*;
pub use warm_start::{TooLong, WarmStart};

/// Longest chain of `extends`.
const MAX_EXTENDS: usize = 16;

/// Number of past steps in a prompt where the recipe does not give it.
const DEFAULT_HISTORY: usize = 2;

/// Returns a file's canonical path and its text.
pub type ReadText<'a> = &'a dyn Fn(&Path) -> std::io::Result<(PathBuf, String)>;

/// Reads a recipe, lays it on those it extends, applies `--set key.path=value` arguments and checks every key.
pub fn load(path: &Path, sets: &[String]) -> Result<Recipe> {
    load_with(path, sets, &|path| Ok((path.canonicalize()?, read_text(path)?)))
}

/// [`load`] with files from any source, such as a map in memory.
pub fn load_with(path: &Path, sets: &[String], read_text: ReadText) -> Result<Recipe> {
    load_from(path, sets, read_text, &of_environment)
}

fn load_from(path: &Path, sets: &[String], read_text: ReadText, lookup: Lookup) -> Result<Recipe> {
    let mut root = Reader { read_text, lookup, open: Vec::new() }.read(path, None)?;
    tree::set_all(&mut root, sets, lookup)?;
    text_file::read(&mut root, read_text)?;
    let mut recipe: Recipe = check::read(&root, &Location::start_of(&path.display().to_string()), ranges::problems)?;
    let history = &mut recipe.rollout.history;
    history.length.get_or_insert(if history.mode == HistoryMode::Transcript { 0 } else { DEFAULT_HISTORY });
    Ok(recipe)
}

/// Factor of the loss that a run in float16 begins with, as `torch.amp.GradScaler`'s.
pub const LOSS_SCALE: f64 = 65_536.0;

/// Reads a resolved recipe, as [`Recipe::to_yaml`] writes it, from its text. Errors call it `name`.
pub fn load_resolved(name: &str, text: &str) -> Result<Recipe> {
    load_with(Path::new(name), &[], &|path| match path == Path::new(name) {
        true => Ok((path.into(), text.into())),
        false => Err(std::io::ErrorKind::NotFound.into()), // a resolved recipe extends no other
    })
}

/// Reads a YAML file of another kind than a recipe, such as a benchmark's workload, as strictly and with the same errors.
/// `problem` returns the path of the first value out of range and the end of the sentence that starts with that path.
pub fn load_as<T>(path: &Path, problem: impl Fn(&T) -> Option<Problem>) -> Result<T>
where
    T: DeserializeOwned + JsonSchema,
{
    let start = Location::start_of(&path.display().to_string());
    let text = read_text(path).map_err(|error| input_error!("{}{}{error}", path.display(), utf8::colon(&error)))?;
    let Node::Map(mut map) = tree::parse(&text, &start, &of_environment)? else {
        return Err(input_error!("{start}: this file must be a map of keys"));
    };
    drop_shared(&mut map);
    check::read(&Node::Map(map), &start, problem)
}

impl Recipe {
    /// The resolved recipe as YAML, which loads to the same recipe. It holds the values of variables, not their names.
    pub fn to_yaml(&self) -> Result<String> {
        let context = "could not write the recipe as YAML";
        let text = serde_yaml::to_string(self).context(context)?;
        if !text.contains("${") {
            return Ok(text);
        }
        let mut value = serde_json::to_value(self).context(context)?;
        protect(&mut value);
        serde_yaml::to_string(&value).context(context)
    }

    /// The split of training tasks of an environment, by its number in the list.
    pub fn split_of(&self, environment: usize) -> &str {
        let own = self.env.all().get(environment).and_then(|env| env.split.as_ref());
        own.unwrap_or(&self.rollout.split)
    }

    /// True if the run begins by imitating the environment's expert.
    pub fn imitates_expert(&self) -> bool {
        self.warm_start.as_ref().is_some_and(|settings| settings.data.is_empty())
    }

    /// Combinations that are allowed but rarely intended.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let truncated = self.rollout.top_k > 0 || self.rollout.top_p < 1.0 || self.rollout.min_p > 0.0;
        if truncated && self.update.old_logprobs == OldLogprobs::Rollout {
            warnings.push(
                "rollout.top_k, rollout.top_p or rollout.min_p cuts the sampling distribution, but log-probs are those of the whole \
                 distribution: the ratio of update.old_logprobs: rollout does not correct for the cut"
                    .into(),
            );
        }
        if self.eval.evaluates() && self.eval.split == self.rollout.split {
            warnings.push(format!(
                "eval.split and rollout.split are both `{}`: evaluation then plays tasks that were trained on",
                self.eval.split
            ));
        }
        warnings.extend(self.eval.warning());
        warnings
    }
}

impl ModelSource {
    /// The parts of a vision tower that are trained.
    pub fn vision_train(&self) -> VisionTrain {
        let default = if self.lora.is_some() { VisionTrain::None } else { VisionTrain::All };
        self.vision.as_ref().and_then(|vision| vision.train).unwrap_or(default)
    }
}

impl Eval {
    /// False if the run makes no evaluation.
    pub fn evaluates(&self) -> bool {
        self.tasks != EvalTasks::None
    }

    /// Seed of the panel: its own, or that of the run.
    pub fn panel_seed(&self, run: u64) -> u64 {
        self.seed.unwrap_or(run)
    }

    /// Warns of samples that bring nothing new.
    pub fn warning(&self) -> Option<String> {
        (self.evaluates() && self.samples > 1 && self.temperature == 0.0).then(|| {
            format!(
                "eval.temperature is 0 and eval.samples is {}: the samples of a task are equal unless the environment is \
                 random; raise the temperature, or play one sample",
                self.samples
            )
        })
    }
}

impl Rollout {
    /// True if an episode is one conversation.
    pub fn is_transcript(&self) -> bool {
        self.history.mode == HistoryMode::Transcript
    }

    /// Number of past steps that a prompt template receives: 0 in a transcript.
    pub fn history_length(&self) -> usize {
        if self.is_transcript() { 0 } else { self.history.length.unwrap_or(DEFAULT_HISTORY) }
    }

    /// Longest sequence in tokens, including the last response.
    pub fn max_tokens(&self) -> usize {
        self.max_sequence_tokens.unwrap_or(self.max_prompt_tokens.saturating_add(self.max_response_tokens))
    }
}

/// Protects every text of a value from the expansion of variables.
fn protect(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => *text = escape(text),
        serde_json::Value::Array(items) => items.iter_mut().for_each(protect),
        serde_json::Value::Object(map) => map.values_mut().for_each(protect),
        _ => {}
    }
}

/// Drops the keys `x-...` of a file, which only hold anchors for its other keys.
fn drop_shared(map: &mut Map) {
    map.retain(|entry| !entry.key.starts_with("x-"));
}

/// A reader of recipes and those that they extend.
struct Reader<'a> {
    read_text: ReadText<'a>,
    lookup: Lookup<'a>,
    /// The files being read, outermost first.
    open: Vec<PathBuf>,
}

impl Reader<'_> {
    /// Reads one file; `from` is the location that names it.
    fn read(&mut self, path: &Path, from: Option<&Location>) -> Result<Node> {
        let name = path.display().to_string();
        let start = Location::start_of(&name);
        let mention = from.map_or(String::new(), |location| format!("{location}: "));
        let (real, text) = (self.read_text)(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => input_error!("{mention}there is no recipe {name}"),
            std::io::ErrorKind::InvalidData => input_error!("{mention}{name}{}{error}", utf8::colon(&error)),
            _ => input_error!("{mention}could not read the recipe {name}: {error}"),
        })?;
        if self.open.contains(&real) {
            return Err(input_error!("{mention}{name} extends itself"));
        }
        if self.open.len() == MAX_EXTENDS {
            return Err(input_error!("{mention}{MAX_EXTENDS} recipes extend each other; merge some of them"));
        }
        self.open.push(real);

        let Node::Map(mut map) = tree::parse(&text, &start, self.lookup)? else {
            return Err(input_error!("{start}: a recipe is a map of keys, such as `iterations: 100`"));
        };
        drop_shared(&mut map);
        if text.starts_with(SAVED) {
            saved::update_keys(&mut map);
        }
        text_file::locate(&mut map, path.parent().unwrap_or(Path::new("")));
        let extends = map.iter().position(|entry| entry.key == "extends").map(|index| map.remove(index));
        let mut node = Node::Map(map);
        if let Some(extends) = extends {
            let Node::Scalar(serde_json::Value::String(other)) = extends.node else {
                return Err(input_error!("{}: `extends` must be the path of one recipe", extends.location));
            };
            let base = path.parent().unwrap_or(Path::new("")).join(other);
            node = tree::merge(self.read(&base, Some(&extends.location))?, node);
        }
        self.open.pop();
        Ok(node)
    }
}
