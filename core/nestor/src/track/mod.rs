//! Output of a run: rows and log in its directory, the console, W&B's run file, TensorBoard's event files.

mod columns;
mod console;
#[cfg(test)]
mod console_tests;
mod files;
mod histogram;
mod metrics;
mod phases;
mod slow_notice;
mod tensorboard;
#[cfg(test)]
mod tests;
mod wandb;

use std::path::Path;

use anyhow::Result;
use nestor_args::terminal::printable;
use serde_json::json;

pub use self::console::Console;
pub use columns::IterationRow;
pub use files::Kept;
pub use histogram::Histogram;
pub use metrics::{METRICS, Metric, Metrics, find, markdown};
pub use phases::Phases;
pub use slow_notice::SlowNotice;
pub use tensorboard::TensorBoard;
pub use wandb::{RunFacts, WandbRun};

use self::files::{RowFile, RunFiles};
use crate::event::Event;

/// Number of recent iterations that the time to go is estimated from.
const ETA_WINDOW: usize = 20;

/// Writes a run's metrics. Row 0 is the evaluation before reinforcement learning; iterations count from 1.
pub struct Tracker {
    /// None at ranks other than 0.
    files: Option<RunFiles>,
    console: Console,
    pub wandb: WandbRun,
    pub tensorboard: TensorBoard,
    /// Iteration and success of all evaluations so far.
    evaluations: Vec<(u64, f64)>,
    iterations: u64,
    /// Times of the iterations so far.
    seconds: Vec<f64>,
    /// Number of optimizer steps so far.
    steps: u64,
}

impl Tracker {
    /// A tracker that records nothing, for ranks other than 0.
    pub fn silent(iterations: u64) -> Self {
        Self {
            files: None,
            console: Console::silent(),
            wandb: WandbRun::silent(),
            tensorboard: TensorBoard::silent(),
            evaluations: Vec::new(),
            iterations,
            seconds: Vec::new(),
            steps: 0,
        }
    }

    pub fn with_console(self, console: Console) -> Self {
        Self { console, ..self }
    }

    /// Opens the files of a run directory, and removes the rows that are not kept.
    pub fn open(dir: &Path, iterations: u64, kept: Kept) -> Result<Self> {
        let (files, earlier) = RunFiles::open(dir, kept)?;
        let (mut evaluations, mut seconds) = (Vec::new(), Vec::new());
        for row in &earlier.rows {
            let value = |name: &str| row[name].as_f64();
            let iteration = row["iteration"].as_u64().unwrap_or(0);
            evaluations.extend(evaluation(iteration, value));
            seconds.extend(own_seconds(iteration, value));
        }
        Ok(Self { files: Some(files), evaluations, seconds, steps: earlier.steps, ..Self::silent(iterations) })
    }

    /// Number of optimizer steps that the run has recorded.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Prints an event and adds it to `log.txt` and W&B.
    pub fn emit(&mut self, event: &Event) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        self.console.emit(event);
        let line = printable(&event.line());
        self.wandb.log(&line);
        files.log(&line)
    }

    /// Prints and logs a line.
    pub fn log(&mut self, message: &str) -> Result<()> {
        self.emit(&Event::Log { message })
    }

    /// Warns on standard error, in the log and in W&B.
    pub fn warn(&mut self, message: &str) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        self.console.warn(message);
        let line = printable(&Event::Warning { message }.line());
        self.wandb.log(&line);
        files.log(&line)
    }

    /// Warns of a run that will hardly succeed: on the console, in the log, and as an alert in W&B.
    pub fn alarm(&mut self, title: &str, message: &str) -> Result<()> {
        self.wandb.alert(title, message);
        self.emit(&Event::Warning { message })
    }

    /// Ends W&B's run file and logs its path.
    pub fn close(&mut self, exit_code: i32) {
        if let Some(line) = self.wandb.finish(exit_code) {
            // The run is over: if the disk is full now, only this line is lost.
            let _ = self.log(&line);
        }
    }

    /// Writes the row of an iteration and prints it.
    pub fn record(&mut self, iteration: u64, metrics: &Metrics) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        files.append(RowFile::Metrics, &(metrics.to_json(iteration) + "\n"))?;
        self.seconds.extend(own_seconds(iteration, |name| metrics.get(name)));
        let row = IterationRow {
            iteration,
            iterations: self.iterations,
            metrics,
            to_go: eta(&self.seconds, self.iterations, iteration),
        };
        self.console.iteration(&row);
        self.wandb.record(iteration, metrics);
        self.tensorboard.record(iteration, metrics);
        self.wandb.log(&row.line());
        files.log(&row.line())?;

        self.evaluations.extend(evaluation(iteration, |name| metrics.get(name)));
        Ok(())
    }

    /// Writes one row per optimizer step of an iteration.
    pub fn record_steps(&mut self, iteration: u64, steps: impl Iterator<Item = Metrics>) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let mut rows = String::new();
        for metrics in steps {
            rows += &(metrics.to_json(iteration) + "\n");
            self.steps += 1;
            self.wandb.step(iteration, self.steps, &metrics);
            self.tensorboard.step(self.steps, &metrics);
        }
        files.append(RowFile::Steps, &rows)
    }

    /// Writes the row of a warm-start step: named numbers, such as `loss`.
    pub fn record_warm_start(&mut self, step: u64, values: &[(&'static str, f64)]) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        self.wandb.warm_start(step, values);
        self.tensorboard.warm_start(step, values);
        let mut row = serde_json::Map::from_iter([("step".to_string(), step.into())]);
        row.extend(values.iter().map(|(name, value)| (name.to_string(), json!(value))));
        files.append(RowFile::WarmStart, &format!("{}\n", serde_json::Value::Object(row)))
    }

    /// Writes the outcomes of an evaluation.
    pub fn record_outcomes(&mut self, outcomes: &serde_json::Value) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        files.append(RowFile::Outcomes, &format!("{outcomes}\n"))
    }

    /// Writes the histograms of an iteration, which `histograms` counts at rank 0.
    pub fn record_histograms(
        &mut self,
        iteration: u64,
        histograms: impl FnOnce() -> Vec<(&'static str, Histogram)>,
    ) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let histograms = histograms();
        self.wandb.histograms(&histograms);
        self.tensorboard.histograms(iteration, &histograms);
        let mut row = serde_json::Map::from_iter([("iteration".to_string(), iteration.into())]);
        for (name, histogram) in &histograms {
            row.insert(name.to_string(), serde_json::to_value(histogram)?);
        }
        files.append(RowFile::Histograms, &format!("{}\n", serde_json::Value::Object(row)))
    }

    /// Iteration and success of all evaluations so far.
    pub fn evaluations(&self) -> &[(u64, f64)] {
        &self.evaluations
    }
}

/// Iteration and success of the evaluation in a row, if there is one.
fn evaluation(iteration: u64, value: impl Fn(&str) -> Option<f64>) -> Option<(u64, f64)> {
    value("eval/success").filter(|success| success.is_finite()).map(|success| (iteration, success))
}

/// Seconds to the end of the run, estimated from recent iterations.
fn eta(seconds: &[f64], iterations: u64, iteration: u64) -> Option<f64> {
    let recent = &seconds[seconds.len().saturating_sub(ETA_WINDOW)..];
    let mean = recent.iter().sum::<f64>() / recent.len() as f64;
    (!recent.is_empty()).then(|| mean * iterations.saturating_sub(iteration) as f64)
}

/// Seconds that an iteration itself took: the first one of a resumed run also counts the start of the program.
fn own_seconds(iteration: u64, value: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let all = value("time/iteration_s").filter(|_| iteration > 0)?;
    Some(all - value("time/start_s").unwrap_or(0.0))
}
