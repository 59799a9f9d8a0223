//! One self-contained HTML page of training runs: curves of all metrics, a comparison of runs, and a browser of the
//! episodes played. It reads only run directories (`metrics.jsonl`, `recipe.yaml`, `rollouts/`), also of runs in
//! progress. It needs neither the trainer nor a network; neither does the page.
//!
//! The page holds the summaries of all episodes, and the turns of as many as fit into [`Options::max_bytes`].

#![forbid(unsafe_code)]

mod blocks;
mod budget;
mod html;
mod index;
mod read;
mod turns;

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use thiserror::Error;

use crate::blocks::Rollouts;
use crate::read::RunDir;

/// Options of a page.
#[derive(Debug, Clone)]
pub struct Options {
    /// Documentation of metrics; those without an entry are shown by their name alone.
    pub metrics: Vec<MetricInfo>,
    /// Most bytes of the page. Curves and the summaries of episodes are always kept; turns may be dropped to fit.
    pub max_bytes: u64,
    /// Keep turns of these iterations only; `None` means of all.
    pub iterations: Option<RangeInclusive<u64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { metrics: Vec::new(), max_bytes: 24 << 20, iterations: None }
    }
}

/// Documentation of one metric.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricInfo {
    /// Its name; `<...>` in it matches any text, as in `time/<phase>_s`.
    pub name: String,
    /// Its unit; may be empty.
    pub unit: String,
    pub meaning: String,
    pub formula: String,
}

#[derive(Debug)]
pub struct HtmlPage {
    /// The HTML document.
    pub html: String,
    /// Episodes found in all runs.
    pub episodes: usize,
    /// Episodes whose turns are in the page.
    pub kept: usize,
    /// Unreadable lines of rollout files, including lines being written.
    pub damaged: usize,
}

/// Reason that no page can be made. Each is a mistake in the request.
#[derive(Debug, Error)]
pub enum ViewError {
    #[error("no run given: name one or more run directories")]
    NoRuns,
    /// The path is not a run directory.
    #[error("{}: not a run directory: it has neither metrics.jsonl nor recipe.yaml", .0.display())]
    NotARun(PathBuf),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A row, not the last one, is not a JSON object with an iteration.
    #[error("{}:{line}: not a row of metrics: {reason}; remove the line", path.display())]
    Row {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        reason: String,
    },
    /// `recipe.yaml` is not YAML.
    #[error("{}: not a recipe: {reason}", path.display())]
    Recipe { path: PathBuf, reason: String },
}

/// Makes the page of these run directories. Reads rollouts one file at a time.
pub fn page(runs: &[PathBuf], options: &Options) -> Result<HtmlPage, ViewError> {
    if runs.is_empty() {
        return Err(ViewError::NoRuns);
    }
    let runs = runs.iter().map(|dir| RunDir::open(dir)).collect::<Result<Vec<_>, _>>()?;
    let frame = html::PageFrame::new();
    let about = index::About::of(&runs, &options.metrics);
    let used = (frame.len() + about.encoded_len()) as u64;
    let mut rollouts = Rollouts::new(&runs, options.max_bytes.saturating_sub(used));
    let jobs = budget::order(&runs, options.iterations.as_ref());
    for place in 0..jobs.len() {
        rollouts.add(&jobs[place..])?;
    }
    let html = frame.fill(&about.with_rollouts(&rollouts, options), &rollouts.html);
    Ok(HtmlPage { html, episodes: rollouts.episodes, kept: rollouts.kept, damaged: rollouts.damaged })
}
