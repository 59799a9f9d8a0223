//! A running baseline per task: an episode's score less the mean of the scores that its task had in earlier iterations.
//!
//! ```text
//! A_i = S_i - b(task)                  b = 0 for a task that is new
//! b  += (mean S - b) / min(n, window)  after the advantages; n: iterations with this task, mean S: over its episodes
//! ```
//!
//! The baselines are the estimator's state: Nestor saves them in its checkpoints.

use std::collections::BTreeMap;

use nestor_plugin::anyhow::{Context, Result, ensure};
use nestor_plugin::stats::row_scores;
use nestor_plugin::{Asked, Column, Columns, Estimator, Rows, Scores, State, schemars, serde, serde_json};

struct RunningBaseline {
    window: u64,
    baselines: BTreeMap<u64, Baseline>,
}

#[derive(Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
#[serde(crate = "nestor_plugin::serde")]
struct Baseline {
    mean: f64,
    iterations: u64,
}

/// The keys of `estimator.config`.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(crate = "nestor_plugin::serde", deny_unknown_fields)]
#[schemars(crate = "nestor_plugin::schemars")]
struct Config {
    /// Iterations of a task after which old scores fade.
    #[serde(default = "default_window")]
    window: u64,
}

fn default_window() -> u64 {
    10
}

impl Estimator for RunningBaseline {
    const ID: &'static str = "running_baseline";
    const DOC: &'static str = "a score against the running mean of its task";
    type Config = Config;

    fn open(Config { window }: Config) -> Result<Self> {
        ensure!(window > 0, "config key `window` must be at least 1");
        Ok(Self { window, baselines: BTreeMap::new() })
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let (tasks, scores) = (rows.task()?, row_scores(rows));
        let known = |task: &u64| self.baselines.get(task).copied().unwrap_or_default().mean;
        let advantages: Vec<f64> = scores.iter().zip(tasks).map(|(score, task)| score - known(task)).collect();
        let mut firsts: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for row in (0..rows.len()).filter(|&row| rows.step[row] == 0) {
            firsts.entry(tasks[row]).or_default().push(scores[row]);
        }
        for (task, scores) in firsts {
            let baseline = self.baselines.entry(task).or_default();
            baseline.iterations += 1;
            let mean = scores.iter().sum::<f64>() / scores.len() as f64;
            baseline.mean += (mean - baseline.mean) / baseline.iterations.min(self.window) as f64;
        }
        out.metric("tasks", self.baselines.len() as f64);
        let sum: f64 = self.baselines.values().map(|baseline| baseline.mean).sum();
        out.metric("baseline_mean", sum / self.baselines.len() as f64);
        out.broadcast(rows, &advantages);
        Ok(())
    }
}

impl Columns for RunningBaseline {
    fn columns(&self) -> Vec<Asked> {
        vec![Column::Task.into()]
    }
}

impl State for RunningBaseline {
    fn save(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.baselines)?)
    }

    fn load(&mut self, state: &[u8]) -> Result<()> {
        self.baselines = serde_json::from_slice(state).context("the state holds no baselines")?;
        Ok(())
    }
}

nestor_plugin::export! { estimators: [RunningBaseline + columns + state] }
