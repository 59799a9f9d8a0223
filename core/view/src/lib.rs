//! One self-contained HTML page of training runs: curves of all metrics, runs compared, and a browser of the episodes
//! played. It reads run directories only (`metrics.jsonl`, `recipe.yaml`, `rollouts/`), also of runs in progress, and
//! needs neither the trainer nor a network; neither does the page.
//!
//! The page holds the summaries of all episodes, and the turns of as many as fit into [`Options::max_bytes`].

#![forbid(unsafe_code)]

#![forbid(unsafe_code)]

mod blocks;
mod budget;
mod html;
mod index;
mod read;
mod turns;

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::blocks::Rollouts;
use crate::read::Run;

/// What a page is made with.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is known of metrics; those without an entry are shown by their name alone.
    pub metrics: Vec<MetricInfo>,
    /// Bytes that the page may have. Curves and the summaries of episodes are always kept; turns are left out.
    pub max_bytes: u64,
    /// Keep turns of these iterations only; `None` means of all.
    pub iterations: Option<RangeInclusive<u64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { metrics: Vec::new(), max_bytes: 24 << 20, iterations: None }
    }
}

/// What is known of one metric.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricInfo {
    /// Its name; `<...>` in it stands for any text, as in `time/<phase>_s`.
    pub name: String,
    /// Its unit; may be empty.
    pub unit: String,
    /// What it says, in words.
    pub meaning: String,
    /// How it is computed; may be empty.
    pub formula: String,
}

/// A finished page.
#[derive(Debug)]
pub struct Page {
    /// The whole document.
    pub html: String,
    /// Episodes found in all runs.
    pub episodes: usize,
    /// Episodes whose turns are in the page.
    pub kept: usize,
    /// Lines of rollout files that could not be read, among them lines being written.
    pub damaged: usize,
}

impl Page {
    /// Writes the page: first beside `path`, then renamed, so that an older page is never half replaced.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        fs::write(&partial, &self.html)?;
        fs::rename(&partial, path)
    }
}

/// Why no page can be made: each is a mistake in what was asked for.
#[derive(Debug, Error)]
pub enum ViewError {
    /// No run was named.
    #[error("no run given: name one or more run directories")]
    NoRuns,
    /// The path is no run directory.
    #[error("{}: not a run directory: it has neither metrics.jsonl nor recipe.yaml", .0.display())]
    NotARun(PathBuf),
    /// A file or directory of the run cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A row that is not the last one is no JSON object with an iteration.
    #[error("{}:{line}: not a row of metrics: {reason}; remove the line", path.display())]
    Row {
        /// The file of rows.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// `recipe.yaml` is no YAML.
    #[error("{}: not a recipe: {reason}", path.display())]
    Recipe {
        /// The recipe.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Makes the page of these run directories. Rollouts are read one file at a time.
pub fn page(runs: &[PathBuf], options: &Options) -> Result<Page, ViewError> {
    if runs.is_empty() {
        return Err(ViewError::NoRuns);
    }
    let runs = runs.iter().map(|dir| Run::open(dir)).collect::<Result<Vec<_>, _>>()?;
    let frame = html::Frame::new();
    let about = index::About::of(&runs, &options.metrics);
    let used = (frame.len() + about.encoded_len()) as u64;
    let mut rollouts = Rollouts::new(&runs, options.max_bytes.saturating_sub(used));
    let jobs = budget::order(&runs, options.iterations.as_ref());
    for place in 0..jobs.len() {
        rollouts.add(&jobs[place..])?;
    }
    let html = frame.fill(&about.with_rollouts(&rollouts, options), &rollouts.html);
    Ok(Page { html, episodes: rollouts.episodes, kept: rollouts.kept, damaged: rollouts.damaged })
}
