//! The keys of `env.config`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nestor_plugin::files::{self, LARGE};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Settings of sampling that a request may name.
const SETTINGS: [&str; 7] = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop"];

/// The keys of `env.config`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The command that starts a worker, such as `python agent.py`. A shell runs it.
    pub command: String,
    /// The tasks of each split: a file of JSON Lines, one task a line, or a number of tasks that differ in their number and seed alone.
    pub tasks: BTreeMap<String, Tasks>,
    /// Keeps a worker for many episodes: it reads one line of JSON for each from its standard input, and ends each by a line of JSON. By
    /// default a worker plays one episode and leaves.
    #[serde(default)]
    pub reuse: bool,
    /// Longest time in seconds between a response and the next request. Keep it below `env.timeout_s`.
    #[serde(default = "two_minutes")]
    pub timeout_s: f64,
    /// Longest time in seconds until an episode's first request.
    #[serde(default = "two_minutes")]
    pub start_timeout_s: f64,
    /// Settings of sampling that requests may name although they are not obeyed: `temperature`, `top_p`, `top_k`, `min_p`, `seed`,
    /// `max_tokens`, `stop`. The recipe's settings hold. Requests with any other setting are refused.
    #[serde(default)]
    pub ignored: Vec<String>,
    /// The name of the model, as `/v1/models` lists it. Requests may name any.
    #[serde(default = "policy")]
    pub model: String,
    /// Variables of the workers' environment.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// The folder that workers start in.
    #[serde(default = "here")]
    pub folder: PathBuf,
}

/// The tasks of a split.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Tasks {
    /// A number of tasks.
    Count(u64),
    /// A file of JSON Lines.
    File(PathBuf),
}

/// The tasks of a split, read.
pub enum TaskList {
    Numbered(u64),
    Rows(Vec<Value>),
}

impl TaskList {
    pub fn count(&self) -> u64 {
        match self {
            Self::Numbered(count) => *count,
            Self::Rows(rows) => rows.len() as u64,
        }
    }

    /// The task of a number; null where tasks are numbers alone.
    pub fn task(&self, number: u64) -> Result<Value> {
        ensure!(number < self.count(), "there is no task {number}: the split has {}", self.count());
        Ok(match self {
            Self::Numbered(_) => Value::Null,
            Self::Rows(rows) => rows[number as usize].clone(),
        })
    }
}

impl Config {
    pub fn check(&self) -> Result<()> {
        ensure!(!self.command.trim().is_empty(), "config key `command` is empty; write the command of a worker");
        ensure!(!self.tasks.is_empty(), "config key `tasks` has no split; write `train: tasks.jsonl`");
        for (key, seconds) in [("timeout_s", self.timeout_s), ("start_timeout_s", self.start_timeout_s)] {
            ensure!(
                seconds > 0.0 && seconds <= 1e6,
                "config key `{key}` is {seconds}: it must be above 0 and at most 1e6"
            );
        }
        for name in &self.ignored {
            ensure!(
                SETTINGS.contains(&name.as_str()),
                "config key `ignored`: `{name}` is unknown{}",
                nestor_plugin::suggest(name, &SETTINGS)
            );
        }
        ensure!(self.folder.is_dir(), "config key `folder`: {} is no folder", self.folder.display());
        Ok(())
    }

    /// The tasks by split.
    pub fn read_tasks(&self) -> Result<BTreeMap<String, TaskList>> {
        let read = |(split, tasks): (&String, &Tasks)| {
            let list = match tasks {
                Tasks::Count(count) => TaskList::Numbered(*count),
                Tasks::File(path) => TaskList::Rows(rows(path)?),
            };
            ensure!(list.count() > 0, "config key `tasks.{split}`: the split has no task");
            Ok((split.clone(), list))
        };
        self.tasks.iter().map(read).collect()
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }

    pub fn start_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.start_timeout_s)
    }
}

fn rows(path: &Path) -> Result<Vec<Value>> {
    let text = files::read_to_string(path, LARGE)
        .map_err(|error| anyhow!("config key `tasks`: {}: {error}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(number, line): (usize, &str)| {
        serde_json::from_str(line)
            .with_context(|| format!("config key `tasks`: {}, line {}", path.display(), number + 1))
    };
    lines.map(read).collect()
}

fn two_minutes() -> f64 {
    120.0
}
fn policy() -> String {
    "policy".into()
}
fn here() -> PathBuf {
    ".".into()
}
