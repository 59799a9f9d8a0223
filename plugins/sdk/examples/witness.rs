//! An environment and an estimator that write down what they see, so that tests can compute a run's numbers independently:
//! its use of returns, and its columns with PyTorch.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nestor_plugin::{
    Asked, Columns, Environment, Estimator, Expert, Instance, Needs, Observation, Parts, Rows, Scores, Start, View,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Tasks of each split.
const TASKS: u64 = 60;
/// The kinds of tasks, by their number modulo 3.
const KINDS: [&str; 3] = ["same", "coin", "rare"];
/// The expert's response; it is not logged.
const EXPERT: &str = "expert";

/// An environment of one step whose return is a known function of task and response. It logs every episode.
struct Scripted {
    config: ScriptedConfig,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScriptedConfig {
    /// A file that receives a line of JSON for each episode: split, task, seed and return.
    log: PathBuf,
    /// Milliseconds that each step takes, apart from the expert's: makes a rollout last.
    #[serde(default)]
    delay_ms: u64,
}

impl Environment for Scripted {
    const ID: &'static str = "scripted";
    const DOC: &'static str = "One step whose return is a known function of task and response.";
    type Config = ScriptedConfig;
    type Instance = Play;

    fn open(config: ScriptedConfig) -> Result<Self> {
        Ok(Self { config })
    }

    fn template(&self) -> String {
        "{{ observation }}".into()
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        match split {
            "train" | "eval" => Ok(TASKS),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play { split: String::new(), task: 0, seed: 0 })
    }
}

struct Play {
    split: String,
    task: u64,
    seed: u64,
}

impl Play {
    /// Returns the outcome. Tasks of the first kind have one return each, whatever the response; in the second, half of
    /// the responses win; in the third, one in sixteen.
    fn outcome(&self, response: &str) -> f64 {
        let sum: u64 = response.bytes().map(u64::from).sum();
        match self.task % 3 {
            0 => self.task as f64 / 10.0,
            1 => f64::from(u8::from(sum.is_multiple_of(2))),
            _ => f64::from(u8::from(sum.is_multiple_of(16))),
        }
    }

    fn observation(&self) -> Observation {
        let info = json!({ "task_type": KINDS[(self.task % 3) as usize] });
        Observation {
            text: format!("task {}", self.task),
            valid: true,
            info: info.as_object().cloned().unwrap_or_default(),
            ..Observation::default()
        }
    }
}

impl Instance for Play {
    type World = Scripted;

    fn reset(&mut self, world: &Scripted, start: Start<'_>) -> Result<Observation> {
        ensure!(start.task < world.tasks(start.split)?, "there is no task {}", start.task);
        *self = Play { split: start.split.into(), task: start.task, seed: start.seed };
        Ok(self.observation())
    }

    fn step(&mut self, world: &Scripted, response: &str) -> Result<Observation> {
        let reward = self.outcome(response);
        if response != EXPERT {
            std::thread::sleep(Duration::from_millis(world.config.delay_ms));
            let Play { split, task, seed } = self;
            let line = json!({ "split": split, "task": task, "seed": seed, "return": reward }).to_string() + "\n";
            let log = OpenOptions::new().create(true).append(true).open(&world.config.log);
            log.and_then(|mut log| log.write_all(line.as_bytes())).context("writing the log")?;
        }
        let mut seen = self.observation();
        seen.info.insert("won".into(), json!(reward >= 1.0));
        // Every second response counts as badly formed, so that penalties differ even if returns do not.
        seen.metrics.insert("outcome".into(), reward);
        Ok(Observation { reward, terminated: true, valid: response.len().is_multiple_of(2), ..seen })
    }
}

impl Expert for Play {
    fn next_action(&mut self, _world: &Scripted) -> Result<String> {
        Ok(EXPERT.into())
    }

    fn response(&self, _world: &Scripted, action: &str) -> Result<String> {
        Ok(action.into())
    }
}

/// An estimator that asks for columns and writes what it gets.
struct AllColumns {
    config: ColumnsConfig,
    asked: Vec<Asked>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ColumnsConfig {
    /// The file to write: one JSON object of the last rows.
    file: PathBuf,
    /// Names of the columns to ask for.
    columns: Vec<String>,
}

impl Estimator for AllColumns {
    const ID: &'static str = "columns";
    const DOC: &'static str = "Writes the columns that it asks for.";
    type Config = ColumnsConfig;

    fn open(config: ColumnsConfig) -> Result<Self> {
        let asked = config.columns.iter().map(|name| name.parse()).collect::<Result<_>>()?;
        Ok(Self { config, asked })
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let mut all = Map::new();
        for (column, view) in rows.asked {
            all.insert(column.to_string(), view.map_or(Value::Null, entries));
        }
        all.insert("episode".into(), json!(rows.episode));
        all.insert("step".into(), json!(rows.step));
        all.insert("token_offsets".into(), json!(rows.token_offsets));
        std::fs::write(&self.config.file, Value::Object(all).to_string()).context("writing the columns")?;
        out.metric("columns", rows.asked.len() as f64);
        out.broadcast(rows, rows.reward);
        Ok(())
    }
}

impl Columns for AllColumns {
    fn columns(&self) -> Vec<Asked> {
        self.asked.clone()
    }
}

impl Parts for AllColumns {
    const NAMES: &'static [&'static str] = &["task_number"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        Ok(vec![rows.task()?.iter().map(|&task| task as f64).collect()])
    }
}

/// The entries of a column; byte strings as texts, NaN as null.
fn entries(view: View<'_>) -> Value {
    match view {
        View::Bytes(strings) => (0..strings.len()).map(|i| json!(String::from_utf8_lossy(strings.of(i)))).collect(),
        View::U8(entries) => json!(entries),
        View::U32(entries) => json!(entries),
        View::U64(entries) => json!(entries),
        View::F32(entries) => json!(entries),
        View::F64(entries) => json!(entries),
    }
}

nestor_plugin::export! { environments: [Scripted + expert], estimators: [AllColumns + parts + columns] }
