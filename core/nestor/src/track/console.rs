//! What a run says on standard output: lines, a table and a bar on a terminal, or JSON.

use std::path::Path;

use console::{Term, style};
use serde::Serialize;
use serde_json::{Map, Value};

use super::columns::{Row, Table};
use super::progress::Progress;
use super::terminal;

/// Something that a run has to say.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// What runs where.
    Start {
        /// The run directory.
        run_dir: &'a Path,
        /// Parameters of the policy.
        parameters: i64,
        /// Of its adapters, where it has some.
        #[serde(skip_serializing_if = "Option::is_none")]
        adapters: Option<i64>,
        /// The type that passes compute with.
        dtype: String,
        /// Where they compute.
        device: String,
        /// The environment's plugin.
        environment: &'a str,
        /// The estimator's plugin.
        estimator: &'a str,
        /// Iterations of the run.
        iterations: u64,
        /// Number of ranks.
        world: usize,
        /// The checkpoint that the run goes on from.
        #[serde(skip_serializing_if = "Option::is_none")]
        resumed_from: Option<&'a Path>,
    },
    /// How far the warm start is.
    WarmStart {
        /// The optimiser step, from 1.
        step: u64,
        /// Optimiser steps in all.
        steps: u64,
        /// Mean negative log-prob of the expert's tokens, in nats.
        loss: f64,
    },
    /// An iteration: its row of `metrics.jsonl`.
    Iteration(Map<String, Value>),
    /// Something to know.
    Say {
        /// One line.
        message: &'a str,
    },
    /// Something to look at.
    Warning {
        /// One line.
        message: &'a str,
    },
    /// Why the run failed.
    Error {
        /// One line.
        message: &'a str,
    },
    /// How the run ended.
    End {
        /// Whether all iterations are done, or a signal asked to stop.
        status: Status,
        /// The run directory.
        run_dir: &'a Path,
        /// Whether there is a checkpoint to go on from.
        saved: bool,
    },
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All iterations are done.
    Done,
    /// A signal asked to stop.
    Stopped,
}

impl Event<'_> {
    /// As one line; an iteration's is made by [`Row::line`].
    pub fn line(&self) -> String {
        match self {
            Self::Start { run_dir, parameters, adapters, dtype, device, environment, estimator, .. } => {
                let adapters = adapters.map_or(String::new(), |n| format!(" ({n} of adapters)"));
                let dir = run_dir.display();
                format!(
                    "{parameters} parameters{adapters} in {dtype} on {device}, environment {environment}, \
                     estimator {estimator}, run directory {dir}"
                )
            }
            Self::WarmStart { step, steps, loss } => format!("warm start {step}/{steps} | loss {loss:.4}"),
            Self::Iteration(row) => Value::from(row.clone()).to_string(),
            Self::Say { message } => message.to_string(),
            Self::Warning { message } => format!("warning: {message}"),
            Self::Error { message } => format!("error: {message}"),
            Self::End { status: Status::Done, run_dir, .. } => format!("done: {}", run_dir.display()),
            Self::End { saved: false, .. } => {
                "stopped by a signal before reinforcement learning: nothing was saved".into()
            }
            Self::End { run_dir, .. } => {
                format!("stopped by a signal; go on with --resume --run-dir {}", run_dir.display())
            }
        }
    }

    /// Prints it on standard output as one JSON object.
    pub fn print_json(&self) {
        // Plain data always has a form in JSON.
        terminal::put(&(serde_json::to_string(self).unwrap_or_default() + "\n"));
    }
}

/// How a run speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    /// Another rank speaks.
    Silent,
    /// Whole lines, for a pipe or a file.
    Plain,
    /// Lines that fit, and a bar where the terminal can redraw it.
    Terminal,
    /// One object a line.
    Json,
}

/// Standard output, for as long as a run goes on. What a bar left is cleared when it is dropped.
#[derive(Debug)]
pub struct Console {
    voice: Voice,
    progress: Progress,
    table: Table,
}

impl Drop for Console {
    fn drop(&mut self) {
        self.progress.end();
        // In a panic the line draws no more.
        if self.voice == Voice::Terminal && std::thread::panicking() {
            terminal::clear();
        }
    }
}

impl Console {
    /// Of a rank that leaves speaking to another.
    pub fn silent() -> Self {
        Self { voice: Voice::Silent, progress: Progress::hidden(), table: Table::default() }
    }

    /// Of one of `world` ranks: the first speaks.
    pub fn open(rank: usize, world: usize, json: bool) -> Self {
        let voice = match (rank, json) {
            (0, true) => Voice::Json,
            (0, false) if Term::stdout().is_term() => Voice::Terminal,
            (0, false) => Voice::Plain,
            _ => Voice::Silent,
        };
        let bar = voice == Voice::Terminal && terminal::redraws();
        let progress = if bar { Progress::shown(world) } else { Progress::hidden() };
        Self { voice, progress, table: Table::default() }
    }

    /// Where phases say how far they are.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Says something other than an iteration.
    pub fn emit(&mut self, event: &Event) {
        match self.voice {
            Voice::Silent => {}
            Voice::Json => event.print_json(),
            Voice::Plain => terminal::print(&event.line()),
            Voice::Terminal => {
                let folded = terminal::fold(&event.line(), terminal::columns(&Term::stdout()));
                let warning = matches!(event, Event::Warning { .. });
                self.print(&if warning { style(folded).yellow().to_string() } else { folded });
            }
        }
    }

    /// Tells an iteration.
    pub fn iteration(&mut self, row: &Row) {
        match self.voice {
            Voice::Silent => {}
            Voice::Json => {
                let values = row.metrics.iter().map(|(name, value)| (name.to_string(), value.into()));
                let values = [("iteration".to_string(), row.iteration.into())].into_iter().chain(values);
                Event::Iteration(values.collect()).print_json();
            }
            Voice::Plain => terminal::print(&row.line()),
            Voice::Terminal => {
                let stdout = Term::stdout();
                let size = (usize::from(stdout.size().0), terminal::columns(&stdout));
                let lines = self.table.lines(row, size).join("\n");
                self.print(&lines);
            }
        }
    }

    /// Warns on standard error, before a run has a log.
    pub fn warn(&self, message: &str) {
        terminal::warn(&format!("warning: {message}"));
        if self.voice == Voice::Json {
            Event::Warning { message }.print_json();
        }
    }

    fn print(&self, lines: &str) {
        terminal::print_above(lines, &self.progress.drawn());
    }
}
