//! The messages of a run, as lines or as JSON.

use std::path::Path;

use nestor_args::output::shell_word;
use nestor_args::terminal;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::data::PluginFile;

/// A message of a run: a line, or one object with `--json`.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    Start {
        run_dir: &'a Path,
        /// Number of the policy's parameters.
        parameters: i64,
        /// Number of its adapters' parameters.
        #[serde(skip_serializing_if = "Option::is_none")]
        adapters: Option<i64>,
        /// The compute type, such as `float32`.
        dtype: &'static str,
        /// The device of rank 0, such as `cuda:0`.
        device: String,
        /// The library of products on a CPU, such as `onednn`.
        #[serde(skip_serializing_if = "Option::is_none")]
        products: Option<&'static str>,
        /// The code of Nestor's kernels that a GPU runs, such as `sm_90a`; `compute_80` is PTX, which the driver compiles, and
        /// `none` is libtorch alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernels: Option<String>,
        /// Plugin id of the environment.
        environment: &'a str,
        /// Plugin id of the estimator.
        estimator: &'a str,
        /// Their files.
        plugins: &'a [PluginFile],
        iterations: u64,
        /// Number of ranks.
        world: usize,
        /// The checkpoint.
        #[serde(skip_serializing_if = "Option::is_none")]
        resumed_from: Option<&'a Path>,
    },
    WarmStart {
        /// The optimizer step, from 1.
        step: u64,
        /// Number of optimizer steps.
        steps: u64,
        /// Mean negative log-prob of the learned tokens, in nats.
        loss: f64,
        /// That of the held-out chats, where it was measured after this step.
        #[serde(skip_serializing_if = "Option::is_none")]
        validation_loss: Option<f64>,
    },
    /// The row of `metrics.jsonl`.
    Iteration(Map<String, Value>),
    #[serde(rename = "say")]
    Log {
        message: &'a str,
    },
    Warning {
        message: &'a str,
    },
    /// The run failed.
    Error {
        message: &'a str,
    },
    End {
        status: Status,
        run_dir: &'a Path,
    },
}

/// Outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All iterations are done.
    Done,
    /// A signal stopped the run, which a checkpoint lets resume.
    Stopped,
}

impl Event<'_> {
    /// The event as one line. The console formats iterations itself.
    pub fn line(&self) -> String {
        match self {
            Self::Start {
                run_dir,
                parameters,
                adapters,
                dtype,
                device,
                products,
                kernels,
                environment,
                estimator,
                plugins,
                ..
            } => {
                let adapters = adapters.map_or(String::new(), |n| format!(" ({n} of adapters)"));
                let products = products.map_or(String::new(), |library| format!(" (products: {library})"));
                let kernels = kernels.as_ref().map_or(String::new(), |code| format!(" (kernels: {code})"));
                let dir = run_dir.display();
                format!(
                    "{parameters} parameters{adapters} in {dtype} on {device}{products}{kernels}, environment {environment}, \
                     estimator {estimator}, run directory {dir}{}",
                    foreign(plugins)
                )
            }
            Self::WarmStart { step, steps, loss, validation_loss } => {
                let held_out = validation_loss.map_or(String::new(), |loss| format!(" | held out {loss:.4}"));
                format!("warm start {step}/{steps} | loss {loss:.4}{held_out}")
            }
            Self::Iteration(row) => Value::from(row.clone()).to_string(),
            Self::Log { message } => message.to_string(),
            Self::Warning { message } => format!("warning: {message}"),
            Self::Error { message } => format!("error: {message}"),
            Self::End { status: Status::Done, run_dir, .. } => {
                let (run_dir, dir) = (run_dir.display(), word(run_dir));
                format!("done: {run_dir}; next: nestor view {dir} | nestor eval {dir} | nestor export {dir} MODEL")
            }
            Self::End { run_dir, .. } => {
                format!("stopped by a signal; resume with: nestor train --resume --run-dir {}", word(run_dir))
            }
        }
    }

    /// Prints the event on standard output as one JSON object.
    pub fn print_json(&self) {
        // Plain data always has a form in JSON.
        terminal::put(&(serde_json::to_string(self).unwrap_or_default() + "\n"));
    }
}

/// A path as a word of a command.
fn word(path: &Path) -> String {
    shell_word(&path.display().to_string())
}

/// The plugin files that are not beside the program, where the bundled ones are.
fn foreign(plugins: &[PluginFile]) -> String {
    let program = std::env::current_exe().and_then(|program| program.canonicalize()).unwrap_or_default();
    let files = plugins.iter().filter(|file| file.path.parent() != program.parent());
    files.map(|file| format!(", plugin {} from {}", file.id, file.path.display())).collect()
}
