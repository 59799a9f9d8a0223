//! The keys of `env.config`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tempfile::TempPath;

use crate::rows::convert;

/// The plugin's own Python modules, which the classes of `nestor_shims` are made of. Each may import those before it.
const SHIMS: [(&str, &str); 5] = [
    ("nestor_shims", ""),
    ("nestor_shims.common", include_str!("../shims/common.py")),
    ("nestor_shims.reward", include_str!("../shims/reward.py")),
    ("nestor_shims.trl", include_str!("../shims/trl.py")),
    ("nestor_shims.verifiers", include_str!("../shims/verifiers.py")),
];
/// Most workers where the recipe does not say how many.
const WORKERS: usize = 4;

/// The keys of `env.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The environment: a class, or a function that returns an environment, as `package.module:Class`.
    #[serde(default)]
    pub class: Option<String>,
    /// A reward function as `package.module:function`, in place of `class`: episodes of one step.
    #[serde(default)]
    pub reward: Option<String>,
    /// Several reward functions in place of `reward`. The reward is their sum by weight, and each is a metric under `env/`.
    #[serde(default)]
    pub rewards: Vec<Reward>,
    /// Scores all completions together that finish while the worker is busy with those before, in one call of each function that takes
    /// lists. A reward then may depend on its own completion alone. The default of `workers` is 1.
    #[serde(default)]
    pub batch: bool,
    /// Names of the file's columns in place of those that a reward function asks for, such as `{prompt: question, ground_truth:
    /// answer}`.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// The prompts for `reward`: a file of JSON Lines (also compressed by gzip) or Parquet (`.parquet`), a list of files, or either of
    /// these for each split. A row has `prompt`, a text or a list of messages, or else `messages`.
    #[serde(default)]
    pub data: Option<Data>,
    /// Rows at the end of `data` without splits that become split `eval`; a tenth if omitted.
    #[serde(default)]
    pub held_out: Option<u64>,
    /// Columns of the row that go into the info after the step, for records and for a teacher's prompt.
    #[serde(default)]
    pub info: Vec<String>,
    /// Arguments of the class.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
    /// The interpreter, or the folder of a venv.
    #[serde(default = "python3")]
    pub python: PathBuf,
    /// Folders to import from, before the interpreter's own.
    #[serde(default = "here")]
    pub path: Vec<PathBuf>,
    /// Number of worker processes, which share the environments; one for each core, at most 4, if omitted.
    #[serde(default)]
    pub workers: Option<u32>,
    /// Longest time of one call in seconds, after which the worker is killed and started again. Keep it below
    /// `env.timeout_s`.
    #[serde(default = "a_minute")]
    pub timeout_s: f64,
    /// Sum of rewards from which an episode counts as won if its info has no `won`; 1 with `reward`.
    #[serde(default)]
    pub won_at: Option<f64>,
}

/// A reward function among several.
#[derive(Debug, Deserialize, serde::Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reward {
    /// The function, as `package.module:function`.
    #[serde(rename = "fn")]
    pub function: String,
    /// Its weight in the sum.
    #[serde(default = "one")]
    pub weight: f64,
    /// Its name among the metrics, by default the function's.
    #[serde(default)]
    pub name: Option<String>,
}

/// The files of a data set.
#[derive(Debug, Deserialize, serde::Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Data {
    /// All splits together.
    All(Files),
    /// Files for each split.
    Splits(BTreeMap<String, Files>),
}

/// A file, or several whose rows follow each other.
#[derive(Debug, Deserialize, serde::Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Files {
    /// One file.
    One(PathBuf),
    /// Several files.
    Several(Vec<PathBuf>),
}

fn python3() -> PathBuf {
    "python3".into()
}

fn here() -> Vec<PathBuf> {
    vec![".".into()]
}

fn a_minute() -> f64 {
    60.0
}

fn one() -> f64 {
    1.0
}

/// A config that was checked: all that a worker needs.
#[derive(Debug)]
pub struct Setup {
    /// The interpreter.
    pub python: PathBuf,
    /// The class as the recipe names it, for messages.
    pub class: String,
    /// The request that opens the class.
    pub open: Value,
    /// Number of workers.
    pub workers: usize,
    /// Completions are scored together.
    pub batch: bool,
    /// Longest time of one call.
    pub timeout: Duration,
    /// Files of rows that the workers read, removed at the end.
    _rows: Vec<TempPath>,
    /// Sum of rewards that counts as a success.
    pub won_at: Option<f64>,
}

impl Setup {
    /// Checks the config.
    pub fn new(config: Config) -> Result<Setup> {
        let timeout =
            Duration::try_from_secs_f64(config.timeout_s).ok().filter(|t| !t.is_zero() && t.as_secs() < 86400);
        let timeout = timeout.with_context(|| {
            format!("config key `timeout_s` is {}; it must be over 0 and below a day", config.timeout_s)
        })?;
        ensure!(config.workers != Some(0), "config key `workers` must be at least 1");
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let default = if config.batch { 1 } else { cores.min(WORKERS) };
        let workers = config.workers.map_or(default, |n| n as usize);
        let rewards = match config.reward {
            Some(_) if !config.rewards.is_empty() => bail!("config keys `reward` and `rewards` exclude each other"),
            Some(function) => vec![Reward { function, weight: 1.0, name: None }],
            None => config.rewards,
        };
        let won_at = config.won_at.or((!rewards.is_empty()).then_some(1.0));
        let python = interpreter(config.python)?;
        let path = config.path.iter().map(std::path::absolute).collect::<std::io::Result<Vec<_>>>();
        let path = path.context("config key `path`")?;
        let (named, class, kwargs) = match (config.class, rewards.is_empty(), config.data) {
            (Some(class), true, None) => {
                ensure!(config.held_out.is_none(), "config key `held_out` needs `reward` and `data`");
                ensure!(config.columns.is_empty(), "config key `columns` needs `reward` and `data`");
                ensure!(config.info.is_empty(), "config key `info` needs `reward` and `data`");
                ensure!(!config.batch, "config key `batch` needs `reward` and `data`");
                (class.clone(), class, config.kwargs)
            }
            (None, false, Some(data)) => {
                ensure!(config.kwargs.is_empty(), "config key `kwargs` needs `class`");
                let kwargs = [
                    ("rewards", json!(rewards)),
                    ("data", json!(data)),
                    ("held_out", json!(config.held_out)),
                    ("columns", json!(config.columns)),
                    ("info", json!(config.info)),
                ];
                let kwargs = kwargs.map(|(name, value)| (name.to_string(), value)).into_iter().collect();
                let named: Vec<_> = rewards.into_iter().map(|reward| reward.function).collect();
                (named.join(", "), "nestor_shims.reward:Environment".to_string(), kwargs)
            }
            (None, false, None) => {
                bail!("config key `reward` needs `data`, a file of prompts in JSON Lines or Parquet")
            }
            (None, true, _) => bail!("config needs `class: package.module:Class`, or `reward` with `data`"),
            (Some(_), ..) => bail!("config keys `reward` and `data` exclude `class`: remove one or the other"),
        };
        let mut kwargs: Map<String, Value> = kwargs;
        let mut rows = Vec::new();
        if let (true, Some(data)) = (class.starts_with("nestor_shims."), kwargs.get_mut("data")) {
            rows = convert(data)?;
        }
        let modules: Map<String, Value> = match class.starts_with("nestor_shims.") {
            true => SHIMS.iter().map(|&(name, source)| (name.to_string(), source.into())).collect(),
            false => Map::new(),
        };
        let open = json!({
            "class": class, "kwargs": kwargs, "path": path, "modules": modules, "timeout_s": timeout.as_secs_f64(),
        });
        Ok(Setup { python, class: named, open, workers, batch: config.batch, timeout, won_at, _rows: rows })
    }
}

/// The interpreter that a path or a name means.
fn interpreter(python: PathBuf) -> Result<PathBuf> {
    if !python.is_dir() {
        return Ok(python);
    }
    let inside = python.join("bin/python");
    ensure!(inside.exists(), "config key `python`: {} is no venv, it holds no bin/python", python.display());
    Ok(inside)
}
