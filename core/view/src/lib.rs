//! One self-contained HTML page of training runs: curves of all metrics, a comparison of runs, and a browser of the
//! episodes played. It reads only run directories (such as `metrics.jsonl`, `recipe.yaml`, `rollouts/`), also of runs in
//! progress. It needs neither the trainer nor a network; neither does the page.
//!
//! [`page`] makes a file. It holds the summaries of all episodes, and the turns of as many as fit into
//! [`Options::max_bytes`]. [`Server`] gives the same page out on loopback, with the turns of all episodes, and follows
//! runs in progress.

#![forbid(unsafe_code)]

mod axes;
mod blocks;
mod budget;
mod comparison;
mod connection;
mod details;
mod html;
mod images;
mod index;
mod read;
mod serve;
mod site;
mod state;
mod table;
mod turns;
mod variants;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use nestor_compare::{ReadError, expand};
use thiserror::Error;

use crate::blocks::{Rollouts, block, encode};
use crate::details::Details;
use crate::read::RunDir;
pub use crate::serve::Server;

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
    /// The first run's directory, also if a checkpoint in it was named.
    pub dir: PathBuf,
    /// Episodes found in all runs.
    pub episodes: usize,
    /// Episodes whose turns are in the page.
    pub kept: usize,
    /// Images in the page.
    pub images: usize,
    /// Unreadable lines of rollout files, including lines being written.
    pub damaged: usize,
}

/// Reason that no page can be made. Each is a mistake in the request.
#[derive(Debug, Error)]
pub enum ViewError {
    #[error("no run given: name one or more run directories")]
    NoRuns,
    /// A file of a run cannot be read.
    #[error(transparent)]
    Run(#[from] ReadError),
    /// The server cannot listen.
    #[error("cannot listen on 127.0.0.1:{port}: {reason}; choose another --port, or 0 for any that is free")]
    Port { port: u16, reason: String },
}

/// Makes the page of these run directories. Reads files of episodes one at a time.
pub fn page(runs: &[PathBuf], options: &Options) -> Result<HtmlPage, ViewError> {
    let runs = open(runs)?;
    let frame = html::PageFrame::new(false);
    let details = runs.iter().map(Details::of).collect::<Result<Vec<_>, _>>()?;
    let about = index::About::of(&runs, &details, &options.metrics);
    let blocks = details.iter().enumerate().map(|(run, details)| block(&format!("d-{run}"), &encode(details)));
    let details: String = blocks.collect();
    let used = (frame.len() + about.encoded_len() + details.len()) as u64;
    let mut rollouts = Rollouts::new(&runs, options.max_bytes.saturating_sub(used));
    let jobs = budget::order(&runs, options.iterations.as_ref());
    for place in 0..jobs.len() {
        rollouts.add(&jobs[place..])?;
    }
    let html = frame.fill(&about.with_files(&rollouts.files, options, false), &(details + &rollouts.html));
    let dir = runs[0].dir.clone();
    let Rollouts { episodes, kept, damaged, images, .. } = rollouts;
    Ok(HtmlPage { html, dir, episodes, kept, images: images.len(), damaged })
}

fn open(runs: &[PathBuf]) -> Result<Vec<RunDir>, ViewError> {
    if runs.is_empty() {
        return Err(ViewError::NoRuns);
    }
    expand(runs).iter().map(|dir| RunDir::open(dir)).collect()
}
