//! The keys of `env.config`, and the checks of those that depend on each other.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The keys of `env.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of the server, such as `ws://127.0.0.1:8000`; `http://` means the same.
    pub url: String,
    /// Number of tasks of each split. A task is a number, which the server receives at the reset.
    #[serde(default)]
    pub tasks: Tasks,
    /// Number of each split's first task. The ranges of the splits must not overlap.
    #[serde(default)]
    pub first: First,
    /// Fields of the reset and their sources: `task` (the number of the task), `seed` (the low 32 bits of the run's seed
    /// for the episode) or `split` (its name).
    #[serde(default = "seed_from_task")]
    pub reset: BTreeMap<String, Source>,
    /// Further fields of every reset, with constant values.
    #[serde(default)]
    pub reset_kwargs: Map<String, Value>,
    /// Field of the action that takes the policy's action; with `tool`, the tool's argument. The default is the single
    /// required text field that the server names.
    #[serde(default)]
    pub action: Option<String>,
    /// Tool of an MCP server that every action calls.
    #[serde(default)]
    pub tool: Option<String>,
    /// Further fields of every action (with `tool`: further arguments), with constant values.
    #[serde(default)]
    pub action_extra: Map<String, Value>,
    /// Send the whole response as the action, instead of the text between `<action>` and `</action>`.
    #[serde(default)]
    pub raw: bool,
    /// The text that the policy sees: a path into the observation, or several paths, whose values become lines. The default
    /// is the field `text`, else the only text field, else the whole observation as JSON.
    #[serde(default)]
    pub text: Option<Paths>,
    /// Path to a list of messages with `role` and `content`, which the model's chat template gets in place of the text.
    #[serde(default)]
    pub messages: Option<String>,
    /// The images that the policy sees: paths to PNG or JPEG files in base64, data URLs, rows of pixels, or lists of these;
    /// no images if omitted. The default text leaves them out.
    #[serde(default)]
    pub images: Option<Paths>,
    /// Path to the task's text; none if omitted.
    #[serde(default)]
    pub task: Option<String>,
    /// Path to the list of admissible actions; no list if omitted.
    #[serde(default)]
    pub admissible: Option<String>,
    /// The key of the state; the text if omitted, with a digest of the images.
    #[serde(default)]
    pub anchor: Option<Paths>,
    /// Names and paths of values that Nestor records with the episode; `task_type` names the kind of task.
    #[serde(default)]
    pub info: BTreeMap<String, String>,
    /// Path to the expert's next action, for a warm start; no expert if omitted.
    #[serde(default)]
    pub expert: Option<String>,
    /// The rule for a won episode.
    #[serde(default)]
    pub won: Won,
    /// The default prompt template (Jinja), in place of the plugin's.
    #[serde(default)]
    pub template: Option<String>,
    /// Responses after which an episode is cut; if omitted, only the server ends it.
    #[serde(default)]
    pub max_steps: Option<u32>,
    /// Seconds that the server may take for one answer.
    #[serde(default = "default_timeout")]
    pub timeout_s: f64,
    /// Seconds that an instance tries to reach the server, after a restart or while all its sessions are taken.
    #[serde(default = "default_connect_timeout")]
    pub connect_timeout_s: f64,
    /// The most sessions that one process opens; if omitted, only the server limits them.
    #[serde(default)]
    pub sessions: Option<usize>,
}

/// Number of tasks of each split.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tasks {
    /// Tasks of split `train`.
    pub train: u64,
    /// Tasks of split `eval`.
    pub eval: u64,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { train: 1000, eval: 100 }
    }
}

/// Number of each split's first task.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct First {
    /// First task of split `train`.
    pub train: u64,
    /// First task of split `eval`. The default leaves room for a billion tasks to train on, and fits into 31 bits.
    pub eval: u64,
}

impl Default for First {
    fn default() -> Self {
        Self { train: 0, eval: 1 << 30 }
    }
}

/// The source of a field of the reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The number of the task.
    Task,
    /// The run's seed of the episode.
    Seed,
    /// The name of the split.
    Split,
}

/// One path or several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a path or a list of paths")]
pub enum Paths {
    /// One path.
    One(String),
    /// Several paths, in this order.
    Many(Vec<String>),
}

impl Paths {
    /// Returns the paths as a list.
    pub fn list(&self) -> &[String] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Many(paths) => paths,
        }
    }
}

/// The rule for a won episode.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Won {
    /// Path to a value that is true, or a number above 0, if the episode is won.
    pub path: Option<String>,
    /// Without `path`: the episode is won if the server ends it with at least this reward; 1 if omitted.
    pub reward_at_least: Option<f64>,
}

fn seed_from_task() -> BTreeMap<String, Source> {
    BTreeMap::from([("seed".to_string(), Source::Task)])
}

fn default_timeout() -> f64 {
    60.0
}

fn default_connect_timeout() -> f64 {
    30.0
}

/// The longest message that is read, in bytes: as much text as one call of a plugin may return.
const LONGEST_TEXT: usize = 4 << 20;
/// The same with images: an image as rows of pixels takes up to 17 bytes a pixel.
const LONGEST_WITH_IMAGES: usize = 32 << 20;
/// The longest time limit that a config may name, in seconds.
const LONGEST: f64 = 86_400.0;

impl Config {
    /// Refuses values that contradict each other.
    pub fn check(&self) -> Result<()> {
        let (tasks, first) = (self.tasks, self.first);
        ensure!(tasks.train > 0, "config key `tasks.train` must be at least 1");
        let range = |first: u64, count: u64| Some((first, first.checked_add(count)?));
        let (Some(train), Some(eval)) = (range(first.train, tasks.train), range(first.eval, tasks.eval)) else {
            bail!("config keys `first` and `tasks` are together more than 2^64");
        };
        ensure!(
            tasks.eval == 0 || train.1 <= eval.0 || eval.1 <= train.0,
            "the tasks {} to {} of split train and {} to {} of split eval overlap: change config key `first` or `tasks`",
            train.0,
            train.1 - 1,
            eval.0,
            eval.1 - 1
        );
        if let Some(name) = self.reset_kwargs.keys().find(|name| self.reset.contains_key(*name)) {
            bail!("config keys `reset` and `reset_kwargs` both set `{name}`; remove one");
        }
        if let Some(name) = self.action.as_ref().filter(|name| self.action_extra.contains_key(*name)) {
            bail!("config key `action_extra` sets `{name}`, which `action` fills; remove one");
        }
        ensure!(
            self.won.path.is_none() || self.won.reward_at_least.is_none(),
            "config key `won` has both `path` and `reward_at_least`; remove one"
        );
        ensure!(
            self.messages.is_none() || self.text.is_none(),
            "config keys `messages` and `text` both say what the policy sees; remove one"
        );
        ensure!(self.max_steps != Some(0), "config key `max_steps` must be at least 1");
        ensure!(self.sessions != Some(0), "config key `sessions` must be at least 1");
        for (key, seconds) in [("timeout_s", self.timeout_s), ("connect_timeout_s", self.connect_timeout_s)] {
            let fits = seconds > 0.0 && seconds <= LONGEST;
            ensure!(fits, "config key `{key}` is {seconds}: it must be above 0 and at most {LONGEST}");
        }
        Ok(())
    }

    /// Time for one answer.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }

    /// Bytes of the longest message to read.
    pub fn longest_message(&self) -> usize {
        if self.images.is_some() { LONGEST_WITH_IMAGES } else { LONGEST_TEXT }
    }

    /// Time to reach the server.
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.connect_timeout_s)
    }

    /// Returns number and first task of a split.
    pub fn split(&self, split: &str) -> Result<(u64, u64)> {
        match split {
            "train" => Ok((self.tasks.train, self.first.train)),
            "eval" => Ok((self.tasks.eval, self.first.eval)),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }
}
