//! The files that a run appends to: `metrics.jsonl`, `steps.jsonl`, `warm_start.jsonl`, `histograms.jsonl`,
//! `outcomes.jsonl`, `log.txt`.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::files::{self, LARGE};
use serde_json::Value;

use crate::files::write_whole;

/// The part of a run's files that is kept when the run is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Nothing: the run is new.
    Nothing,
    /// The log and this number of warm-start steps: the run resumes before its first row.
    WarmStart(u64),
    /// The log, the warm start, and the rows up to this iteration.
    Rows(u64),
}

impl Kept {
    /// The last iteration whose row is kept.
    pub fn iteration(self) -> Option<u64> {
        match self {
            Self::Rows(iteration) => Some(iteration),
            Self::Nothing | Self::WarmStart(_) => None,
        }
    }

    /// The last step of the warm start that is kept.
    pub fn warm_start(self) -> Option<u64> {
        match self {
            Self::Rows(_) => Some(u64::MAX),
            Self::WarmStart(steps) => Some(steps),
            Self::Nothing => None,
        }
    }
}

/// A file of rows in a run directory, one JSON object a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowFile {
    /// One row per iteration.
    Metrics,
    /// One row per optimizer step.
    Steps,
    /// One row per step of the warm start.
    WarmStart,
    /// One row per iteration, with the counts of its values.
    Histograms,
    /// One row per evaluation, with the samples won of each task.
    Outcomes,
}

impl RowFile {
    const ALL: [Self; 5] = [Self::Metrics, Self::Steps, Self::WarmStart, Self::Histograms, Self::Outcomes];

    pub fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics.jsonl",
            Self::Steps => "steps.jsonl",
            Self::WarmStart => "warm_start.jsonl",
            Self::Histograms => "histograms.jsonl",
            Self::Outcomes => "outcomes.jsonl",
        }
    }

    /// The key that numbers the rows, and the last number that is kept.
    fn kept(self, kept: Kept) -> (&'static str, Option<u64>) {
        match self {
            Self::WarmStart => ("step", kept.warm_start()),
            Self::Metrics | Self::Steps | Self::Histograms | Self::Outcomes => ("iteration", kept.iteration()),
        }
    }
}

/// The open files of a run.
#[derive(Debug)]
pub(super) struct RunFiles {
    pub dir: PathBuf,
    /// Each from its first row on, so that a run without a warm start has no file of one.
    rows: [Option<File>; RowFile::ALL.len()],
    log: File,
}

/// The rows of a run's earlier lives.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// The rows of `metrics.jsonl`.
    pub rows: Vec<Value>,
    /// Number of optimizer steps.
    pub steps: u64,
}

impl RunFiles {
    /// Opens the files of a run directory, and removes the rows that are not kept. A last row that a kill left incomplete is
    /// not kept either.
    pub fn open(dir: &Path, kept: Kept) -> Result<(Self, Earlier)> {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let mut earlier = Earlier::default();
        for file in RowFile::ALL {
            let path = dir.join(file.name());
            let rows = kept_rows(&path, file.kept(kept))?;
            let text: String = rows.iter().map(|(text, _)| format!("{text}\n")).collect();
            if path.exists() || file != RowFile::WarmStart {
                write_whole(&path, text)?;
            }
            match file {
                RowFile::Metrics => earlier.rows = rows.into_iter().map(|(_, row)| row).collect(),
                RowFile::Steps => earlier.steps = rows.len() as u64,
                RowFile::WarmStart | RowFile::Histograms | RowFile::Outcomes => {}
            }
        }
        if kept == Kept::Nothing {
            write_whole(&dir.join("log.txt"), "")?;
        }
        let files = Self { dir: dir.to_path_buf(), rows: Default::default(), log: open(&dir.join("log.txt"))? };
        Ok((files, earlier))
    }

    /// Appends rows, each with its line end, in one write: a killed process leaves at most its last row incomplete.
    pub fn append(&mut self, file: RowFile, rows: &str) -> Result<()> {
        let open = match self.rows[file as usize].take() {
            Some(open) => open,
            None => open(&self.dir.join(file.name()))?,
        };
        let written = self.rows[file as usize].insert(open).write_all(rows.as_bytes());
        written.with_context(|| self.cannot_write(file.name()))
    }

    /// Appends a line to the log.
    pub fn log(&mut self, line: &str) -> Result<()> {
        writeln!(self.log, "{line}").with_context(|| self.cannot_write("log.txt"))
    }

    fn cannot_write(&self, name: &str) -> String {
        format!("cannot write {}", self.dir.join(name).display())
    }

    /// Replaces a file, for tests of a full disk.
    #[cfg(test)]
    pub fn replace(&mut self, file: Option<RowFile>, by: File) {
        match file {
            Some(file) => self.rows[file as usize] = Some(by),
            None => self.log = by,
        }
    }
}

/// Opens a file to append to it.
fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}

/// The rows to keep: their texts and their values.
fn kept_rows(path: &Path, (key, last): (&str, Option<u64>)) -> Result<Vec<(String, Value)>> {
    let Some(last) = last else { return Ok(Vec::new()) };
    let text = match files::read_to_string(path, LARGE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("reading {}", path.display()))?,
    };
    let row = |text: &str| {
        let values: Value = serde_json::from_str(text).ok()?;
        values[key].as_u64().is_some_and(|number| number <= last).then(|| (text.to_string(), values))
    };
    Ok(text.lines().filter_map(row).collect())
}
