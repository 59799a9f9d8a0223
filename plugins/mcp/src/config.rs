//! The keys of `env.config`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest time limit that a config may name, in seconds.
const LONGEST: f64 = 86_400.0;

/// The keys of `env.config`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The command that starts a server which speaks MCP over its standard input and output, such as `python server.py`. A shell runs it.
    #[serde(default)]
    pub command: Option<String>,
    /// Address of a server that speaks MCP over streamable HTTP, such as `http://127.0.0.1:8000/mcp`. Either this or `command`.
    #[serde(default)]
    pub url: Option<String>,
    /// Variables of the environment of the servers that `command` starts.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Headers of every request to `url`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The folder that `command` starts in.
    #[serde(default = "here")]
    pub folder: PathBuf,
    /// The processes or HTTP sessions that episodes play on.
    #[serde(default)]
    pub session: Sessions,
    /// Names of the tools that the policy may call, in the order to show; all of the server's if omitted.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// The tasks of each split: a file of JSON Lines, one task a line, with `prompt` (a text) or `messages`, and `answer`.
    pub tasks: BTreeMap<String, PathBuf>,
    /// The system message, where a task has none of its own.
    #[serde(default)]
    pub system: Option<String>,
    /// The reward of the answer, a response without calls.
    pub reward: Reward,
    /// The least reward of a won episode.
    #[serde(default = "one")]
    pub won_at: f64,
    /// Tool that sets the server's state when an episode begins. It is called with `seed` (32 bits) and `task` (the line of the file),
    /// and the policy does not see it.
    #[serde(default)]
    pub reset_tool: Option<String>,
    /// Most calls of an episode. A response that asks for more cuts the episode.
    #[serde(default = "sixteen")]
    pub max_calls: u32,
    /// Most characters of a result that the policy sees.
    #[serde(default = "four_thousand")]
    pub max_result_chars: usize,
    /// Longest time in seconds of one call. Keep it below `env.timeout_s`.
    #[serde(default = "one_minute")]
    pub timeout_s: f64,
    /// Longest time in seconds until a server is ready.
    #[serde(default = "one_minute")]
    pub start_timeout_s: f64,
}

/// The reward of an answer: `answer` or `score_tool`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reward {
    /// Compares the answer with the task's; the reward is 1 or 0.
    #[serde(default)]
    pub answer: Option<Match>,
    /// Difference up to which numbers are equal, relative to the task's where that is above 1.
    #[serde(default = "a_millionth")]
    pub tolerance: f64,
    /// Tool whose result is the reward. It is called with `task` (the line of the file) and `answer` (the text), and the policy does not
    /// see it.
    #[serde(default)]
    pub score_tool: Option<String>,
}

/// The rule by which answers are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    /// The same text, without white space around it.
    Exact,
    /// The last number of the text is the task's.
    Number,
    /// The text contains the task's.
    Contains,
}

/// The number of servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sessions {
    /// One for each instance, kept over episodes.
    #[default]
    Instance,
    /// One for all instances.
    Shared,
    /// A new one for each episode.
    Episode,
}

/// The place of a server.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    Command(&'a str),
    Url(&'a str),
}

impl Config {
    /// Refuses values that contradict each other.
    pub fn check(&self) -> Result<()> {
        match self.place()? {
            Place::Command(command) => {
                ensure!(
                    !command.trim().is_empty(),
                    "config key `command` is empty; write the command of an MCP server"
                );
                ensure!(
                    self.headers.is_empty(),
                    "config key `headers` is for a server at `url`; this one is a command"
                );
            }
            Place::Url(_) => {
                ensure!(
                    self.variables.is_empty(),
                    "config key `variables` is for a server that `command` starts; this one is at `url`"
                );
            }
        }
        self.reward.check()?;
        ensure!(!self.tasks.is_empty(), "config key `tasks` has no split; write `train: tasks.jsonl`");
        ensure!(self.max_calls > 0, "config key `max_calls` must be at least 1");
        ensure!(self.max_result_chars > 0, "config key `max_result_chars` must be at least 1");
        ensure!(self.won_at.is_finite(), "config key `won_at` must be finite");
        for (key, seconds) in [("timeout_s", self.timeout_s), ("start_timeout_s", self.start_timeout_s)] {
            let fits = seconds > 0.0 && seconds <= LONGEST;
            ensure!(fits, "config key `{key}` is {seconds}: it must be above 0 and at most {LONGEST}");
        }
        ensure!(self.folder.is_dir(), "config key `folder`: {} is no folder", self.folder.display());
        Ok(())
    }

    /// # Errors
    /// Unless the config names one place.
    pub fn place(&self) -> Result<Place<'_>> {
        match (&self.command, &self.url) {
            (Some(command), None) => Ok(Place::Command(command)),
            (None, Some(url)) => Ok(Place::Url(url)),
            (None, None) => {
                bail!("the config names no server; write `command` (a program on this machine) or `url` (HTTP)")
            }
            (Some(_), Some(_)) => bail!("config keys `command` and `url` both name a server; remove one"),
        }
    }

    /// The tools that the policy does not see, with their keys.
    pub fn hidden(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let score = self.reward.score_tool.as_deref().map(|name| ("reward.score_tool", name));
        score.into_iter().chain(self.reset_tool.as_deref().map(|name| ("reset_tool", name)))
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }

    pub fn start_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.start_timeout_s)
    }
}

impl Reward {
    fn check(&self) -> Result<()> {
        ensure!(
            self.answer.is_some() != self.score_tool.is_some(),
            "config key `reward` needs either `answer` (exact, number or contains) or `score_tool` (a tool of the server)"
        );
        ensure!(
            self.tolerance >= 0.0 && self.tolerance.is_finite(),
            "config key `reward.tolerance` is {}: it must be a number of at least 0",
            self.tolerance
        );
        Ok(())
    }
}

fn here() -> PathBuf {
    ".".into()
}
fn one() -> f64 {
    1.0
}
fn sixteen() -> u32 {
    16
}
fn four_thousand() -> usize {
    4000
}
fn one_minute() -> f64 {
    60.0
}
fn a_millionth() -> f64 {
    1e-6
}
