//! The progress of a run, read from its directory.

use std::path::{Path, PathBuf};

use nestor_plugin::files::{self, LARGE, SMALL};
use serde::Serialize;
use serde_json::Value;

use super::job::Job;

/// The state of a run in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// There is no run directory.
    Waiting,
    /// It runs, or it was killed.
    Running,
    /// It has a checkpoint to resume from.
    Stopped,
    Failed,
    /// All iterations of the recipe are done.
    Done,
}

/// A run's row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    pub name: String,
    /// The run directory.
    pub dir: PathBuf,
    pub state: State,
    /// The last finished iteration.
    pub iteration: u64,
    /// Iterations that the recipe asks for.
    pub iterations: u64,
    /// Success of the last evaluation.
    pub eval: Option<f64>,
    /// Training success of the last iteration.
    pub success: Option<f64>,
    /// Wall seconds of all lives.
    pub seconds: f64,
}

impl Progress {
    /// Reads a run's files. One that is damaged or missing counts as empty.
    pub fn of(job: &Job) -> Self {
        let facts = object(&job.dir.join("run.json"));
        let metrics = files::read_to_string(&job.dir.join("metrics.jsonl"), LARGE).unwrap_or_default();
        let rows: Vec<Value> = metrics.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let last = |key: &str| rows.iter().rev().find_map(|row| row[key].as_f64());
        let iteration = rows.last().and_then(|row| row["iteration"].as_u64()).unwrap_or(0);
        let state = match facts["state"].as_str() {
            // A sweep whose file asks for more iterations continues a finished run.
            Some("done") if iteration >= job.recipe.iterations => State::Done,
            Some("done" | "stopped") => State::Stopped,
            Some("failed") => State::Failed,
            _ if job.dir.join("recipe.yaml").exists() => State::Running,
            _ => State::Waiting,
        };
        Self {
            name: job.name.clone(),
            dir: job.dir.clone(),
            state,
            iteration,
            iterations: job.recipe.iterations,
            eval: last("eval/success"),
            success: last("episode/success"),
            seconds: facts["seconds"].as_f64().unwrap_or(0.0),
        }
    }
}

fn object(path: &Path) -> Value {
    let text = files::read_to_string(path, SMALL).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or(Value::Null)
}
