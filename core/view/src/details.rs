//! The rarer curves of a run, in a block of their own that the page reads on demand: optimizer steps, warm start,
//! histograms.

use std::collections::BTreeMap;
use std::path::Path;

use nestor_compare::text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ViewError;
use crate::read::RunDir;
use crate::table::Table;
use crate::turns::number;

/// Most rows of one kind: a chart has fewer pixels.
const MOST: usize = 4000;
/// Most iterations with histograms, each some hundred numbers.
const MOST_HISTOGRAMS: usize = 300;

#[derive(Serialize)]
pub(crate) struct Details {
    /// `steps.jsonl`, numbered from 1 over the whole run.
    steps: Table,
    /// `warm_start.jsonl` by step.
    warm_start: Table,
    histograms: Vec<HistogramRow>,
    /// One of this many steps is kept.
    every: usize,
}

/// Histograms of one iteration.
#[derive(Debug, Serialize, Deserialize)]
struct HistogramRow {
    iteration: u64,
    #[serde(flatten)]
    of: BTreeMap<String, Option<Histogram>>,
}

/// `counts[i]` values between `edges[i]` and `edges[i + 1]`. For bins of equal width the page holds the outer edges only.
#[derive(Debug, Serialize, Deserialize)]
struct Histogram {
    edges: Vec<f64>,
    counts: Vec<f64>,
}

impl Details {
    pub fn of(run: &RunDir) -> Result<Self, ViewError> {
        let steps: Vec<Map<String, Value>> = lines(&run.dir.join("steps.jsonl"))?;
        let every = steps.len().div_ceil(MOST).max(1);
        let numbered = (1..).zip(&steps).filter(|(step, _)| (step - 1) % every as u64 == 0);
        let warm: Vec<Map<String, Value>> = lines(&run.dir.join("warm_start.jsonl"))?;
        let warm: BTreeMap<u64, Map<String, Value>> =
            warm.into_iter().filter_map(|mut row| Some((row.remove("step")?.as_u64()?, row))).collect();
        let thin = warm.len().div_ceil(MOST).max(1);
        Ok(Self {
            steps: Table::of(numbered),
            warm_start: Table::of(warm.iter().step_by(thin).map(|(&step, row)| (step, row))),
            histograms: histograms(&run.dir.join("histograms.jsonl"))?,
            every,
        })
    }

    /// Returns the number of rows by kind.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        [("steps", self.steps.len()), ("warm_start", self.warm_start.len()), ("histograms", self.histograms.len())]
            .into()
    }

    /// Returns the names of the metrics of optimizer steps.
    pub fn metrics(&self) -> impl Iterator<Item = &String> {
        self.steps.metrics()
    }
}

/// Reads the lines of a file that are whole; none if there is no file. A run may be writing the last one.
fn lines<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Vec<T>, ViewError> {
    let text = text(path)?.unwrap_or_default();
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Reads histograms by iteration; the last row of an iteration wins, because a resumed run writes it again.
fn histograms(path: &Path) -> Result<Vec<HistogramRow>, ViewError> {
    let rows: Vec<HistogramRow> = lines(path)?;
    let rows: BTreeMap<u64, HistogramRow> = rows.into_iter().map(|row| (row.iteration, row)).collect();
    let every = rows.len().div_ceil(MOST_HISTOGRAMS).max(1);
    let mut rows: Vec<HistogramRow> = rows.into_values().step_by(every).collect();
    for row in &mut rows {
        row.of.retain(|_, histogram| histogram.as_ref().is_some_and(Histogram::is_whole));
        row.of.values_mut().flatten().for_each(Histogram::shorten);
    }
    Ok(rows)
}

impl Histogram {
    fn is_whole(&self) -> bool {
        !self.counts.is_empty() && self.edges.len() == self.counts.len() + 1
    }

    /// Rounds the edges, and keeps the outer ones of bins of equal width.
    fn shorten(&mut self) {
        let (low, high) = (self.edges[0], self.edges[self.counts.len()]);
        let width = (high - low) / self.counts.len() as f64;
        let is_even = self
            .edges
            .iter()
            .zip(0..)
            .all(|(edge, place)| (edge - low - width * f64::from(place)).abs() <= 1e-3 * width.abs());
        if is_even {
            self.edges = vec![low, high];
        }
        for edge in &mut self.edges {
            *edge = number(Some(*edge), 6).as_f64().unwrap_or(*edge);
        }
    }
}
