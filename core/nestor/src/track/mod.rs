//! Output of a run: `metrics.jsonl`, `steps.jsonl`, `log.txt`, `curve.svg`, the console, and W&B's run file.

mod columns;
mod console;
#[cfg(test)]
mod console_tests;
mod curve;
mod metrics;
mod phases;
mod progress;
mod stop_notice;
pub use nestor_host::terminal;
#[cfg(test)]
mod tests;
mod wandb;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub use self::console::{Console, Event, Status};
pub use columns::IterationRow;
pub use curve::Curve;
pub use metrics::{METRICS, Metric, Metrics, find, markdown};
pub use phases::{CurrentPhase, Phases};
pub use progress::{PhaseGuard, Progress};
pub use stop_notice::StopNotice;
pub use wandb::WandbRun;

use self::terminal::printable;
use crate::files::write_whole;

/// Shortest time between two drawings of the curve, unless there is a new evaluation.
const REDRAW: Duration = Duration::from_secs(2);
/// Number of recent iterations that the time to go is estimated from.
const ETA_WINDOW: usize = 20;

/// The part of a run's files that is kept when the run is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Nothing: the run is new.
    Nothing,
    /// The log alone: the run resumes before its first row.
    Log,
    /// The log, and the rows up to this iteration.
    Rows(u64),
}

impl Kept {
    /// The last iteration whose row is kept.
    pub fn iteration(self) -> Option<u64> {
        match self {
            Self::Rows(iteration) => Some(iteration),
            Self::Nothing | Self::Log => None,
        }
    }
}

/// Writes a run's metrics. Row 0 is the evaluation before reinforcement learning; iterations count from 1.
pub struct Tracker {
    /// None at ranks other than 0.
    files: Option<RunFiles>,
    console: Console,
    pub wandb: WandbRun,
    curve: Curve,
    drawn: Instant,
    iterations: u64,
    seconds: Vec<f64>,
}

/// The files that a run appends to.
#[derive(Debug)]
struct RunFiles {
    dir: PathBuf,
    rows: File,
    steps: File,
    log: File,
}

impl Tracker {
    /// A tracker that records nothing, for ranks other than 0.
    pub fn silent(iterations: u64) -> Self {
        Self {
            files: None,
            console: Console::silent(),
            wandb: WandbRun::silent(),
            curve: Curve::default(),
            drawn: Instant::now(),
            iterations,
            seconds: Vec::new(),
        }
    }

    pub fn with_console(self, console: Console) -> Self {
        Self { console, ..self }
    }

    /// Opens the files of a run directory, and removes the rows that are not kept.
    pub fn open(dir: &Path, iterations: u64, kept: Kept) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let (mut curve, mut seconds) = (Curve::default(), Vec::new());
        for (name, drawn) in [("metrics.jsonl", true), ("steps.jsonl", false)] {
            let path = dir.join(name);
            let rows = kept_rows(&path, kept)?;
            for KeptRow { iteration, values, .. } in rows.iter().filter(|_| drawn) {
                curve.push(*iteration, values["eval/success"].as_f64(), values["episode/success"].as_f64());
                seconds.extend(values["time/iteration_s"].as_f64().filter(|_| *iteration > 0));
            }
            write_whole(&path, rows.into_iter().map(|row| row.text + "\n").collect::<String>())?;
        }
        let append = |name: &str| {
            let path = dir.join(name);
            let file = OpenOptions::new().create(true).append(true).open(&path);
            file.with_context(|| format!("opening {}", path.display()))
        };
        if kept == Kept::Nothing {
            write_whole(&dir.join("log.txt"), "")?;
        }
        let [rows, steps, log] = ["metrics.jsonl", "steps.jsonl", "log.txt"].map(append);
        let files = RunFiles { dir: dir.to_path_buf(), rows: rows?, steps: steps?, log: log? };
        Ok(Self { files: Some(files), curve, seconds, ..Self::silent(iterations) })
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

    /// Writes the row of an iteration, prints it, and redraws the curve now and then.
    pub fn record(&mut self, iteration: u64, metrics: &Metrics) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        // One write per row: a killed process leaves at most its last row incomplete.
        let row = metrics.to_json(iteration) + "\n";
        files.rows.write_all(row.as_bytes()).with_context(|| files.cannot_write("metrics.jsonl"))?;
        self.seconds.extend(metrics.get("time/iteration_s").filter(|_| iteration > 0));
        let row = IterationRow {
            iteration,
            iterations: self.iterations,
            metrics,
            to_go: eta(&self.seconds, self.iterations, iteration),
        };
        self.console.iteration(&row);
        self.wandb.record(iteration, metrics);
        self.wandb.log(&row.line());
        files.log(&row.line())?;

        let eval = metrics.get("eval/success");
        self.curve.push(iteration, eval, metrics.get("episode/success"));
        if eval.is_some() || iteration >= self.iterations || self.drawn.elapsed() >= REDRAW {
            self.draw()?;
        }
        Ok(())
    }

    /// Writes one row per optimiser step of an iteration.
    pub fn record_steps(&mut self, iteration: u64, steps: impl Iterator<Item = Metrics>) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let rows: String = steps.map(|metrics| metrics.to_json(iteration) + "\n").collect();
        files.steps.write_all(rows.as_bytes()).with_context(|| files.cannot_write("steps.jsonl"))
    }

    /// Iteration and success of all evaluations so far.
    pub fn evaluations(&self) -> &[(u64, f64)] {
        &self.curve.eval
    }

    /// Writes `curve.svg`.
    pub fn draw(&mut self) -> Result<()> {
        self.drawn = Instant::now();
        let Some(files) = &self.files else { return Ok(()) };
        write_whole(&files.dir.join("curve.svg"), self.curve.svg(self.iterations)?)
    }
}

/// Seconds to the end of the run, estimated from recent iterations.
fn eta(seconds: &[f64], iterations: u64, iteration: u64) -> Option<f64> {
    let recent = &seconds[seconds.len().saturating_sub(ETA_WINDOW)..];
    let mean = recent.iter().sum::<f64>() / recent.len() as f64;
    (!recent.is_empty()).then(|| mean * iterations.saturating_sub(iteration) as f64)
}

impl RunFiles {
    fn log(&mut self, line: &str) -> Result<()> {
        writeln!(self.log, "{line}").with_context(|| self.cannot_write("log.txt"))
    }

    fn cannot_write(&self, name: &str) -> String {
        format!("cannot write {}", self.dir.join(name).display())
    }
}

/// Resident memory of this process in bytes; none where the system does not report it.
pub fn rss_bytes() -> Option<f64> {
    status_bytes("VmRSS:")
}

/// Peak resident memory of this process in bytes; none where the system does not report it.
pub fn peak_bytes() -> Option<f64> {
    status_bytes("VmHWM:")
}

fn status_bytes(field: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// A row of an earlier life of the run.
struct KeptRow {
    iteration: u64,
    values: serde_json::Value,
    text: String,
}

/// The rows to keep. Drops a last row that a kill left incomplete.
fn kept_rows(path: &Path, kept: Kept) -> Result<Vec<KeptRow>> {
    let Some(last) = kept.iteration() else { return Ok(Vec::new()) };
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("reading {}", path.display()))?,
    };
    let row = |text: &str| {
        let values: serde_json::Value = serde_json::from_str(text).ok()?;
        let iteration = values["iteration"].as_u64().filter(|iteration| *iteration <= last)?;
        Some(KeptRow { iteration, values, text: text.into() })
    };
    Ok(text.lines().filter_map(row).collect())
}
