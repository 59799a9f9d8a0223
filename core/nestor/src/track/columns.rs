//! An iteration as one line: all of its metrics, or the columns that fit the terminal.

use console::style;

use super::Metrics;
use crate::duration::{duration, short_duration};

/// The row of metrics of an iteration, for the console and the log.
#[derive(Debug, Clone, Copy)]
pub struct IterationRow<'a> {
    /// 0 is the evaluation before reinforcement learning.
    pub iteration: u64,
    /// Number of iterations of the run.
    pub iterations: u64,
    pub metrics: &'a Metrics,
    /// Estimated seconds to the end of the run.
    pub to_go: Option<f64>,
}

impl IterationRow<'_> {
    /// The line with all columns.
    pub fn line(&self) -> String {
        let Self { metrics, to_go, .. } = self;
        let mut parts = vec![format!("{} {:>3.0} %", self.count(), self.percent())];
        for Column { metric, label, digits, .. } in VALUES {
            parts.extend(metrics.get(metric).map(|value| format!("{label} {}", fixed(value, *digits))));
        }
        if let Some(skipped) = metrics.get(SKIPPED).filter(|skipped| *skipped > 0.0) {
            parts.push(format!("skipped {skipped}"));
        }
        for (metric, label) in [("rollout/tokens_per_s", "rollout"), ("update/tokens_per_s", "update")] {
            parts.extend(metrics.get(metric).map(|rate| format!("{label} {rate:.0} tokens/s")));
        }
        parts.extend(metrics.get(TREE_FACTOR).map(|factor| format!("tree {factor:.1} ×")));
        parts.extend(metrics.get("time/iteration_s").map(|seconds| format!("{seconds:.1} s")));
        parts.extend(to_go.map(|seconds| format!("{} to go", duration(seconds))));
        parts.join(" | ")
    }

    fn count(&self) -> String {
        let width = self.iterations.to_string().len();
        format!("{:>width$}/{}", self.iteration, self.iterations)
    }

    fn percent(&self) -> f64 {
        // A run of no iterations is done with its warm start.
        if self.iterations == 0 { 100.0 } else { 100.0 * self.iteration as f64 / self.iterations as f64 }
    }
}

/// A column of the table on a terminal.
#[derive(Debug, Clone, Copy)]
struct Column {
    metric: &'static str,
    label: &'static str,
    /// Digits after the decimal point.
    digits: usize,
    /// Characters.
    width: usize,
    /// A narrow terminal shows the columns with the lowest numbers.
    order: usize,
}

const SKIPPED: &str = "grad/skipped";
const ENV_ERRORS: &str = "env/errors";
const KL: &str = "loss/kl";
const TREE_FACTOR: &str = "perf/tree_factor";
const TO_GO: &str = "";

const fn column(metric: &'static str, label: &'static str, digits: usize, width: usize, order: usize) -> Column {
    Column { metric, label, digits, width, order }
}

/// The first columns of a line.
const VALUES: &[Column] = &[
    column("eval/success", "eval", 3, 5, 0),
    column("episode/success", "success", 3, 7, 1),
    column("episode/return", "return", 2, 7, 2),
    column("episode/length", "length", 1, 6, 12),
    column("loss/total", "loss", 4, 7, 3),
    column(KL, "kl", 4, 6, 6),
    column("policy/approx_kl", "approx kl", 4, 9, 15),
    column("policy/entropy", "entropy", 3, 7, 7),
    column("policy/clip_fraction", "clip", 3, 5, 14),
    column("grad/norm", "grad", 3, 6, 8),
    column("eval/valid_action_ratio", "eval valid", 3, 10, 16),
    column("eval/clipped_ratio", "eval cut", 3, 8, 17),
    column("eval/response_length", "eval tokens", 1, 11, 18),
];

/// The last columns of a line.
const REST: &[Column] = &[
    column(SKIPPED, "skipped", 0, 7, 4),
    column(ENV_ERRORS, "env errors", 0, 10, 9),
    column("rollout/tokens_per_s", "rollout t/s", 0, 11, 11),
    column("update/tokens_per_s", "update t/s", 0, 10, 10),
    column(TREE_FACTOR, "tree", 1, 4, 19),
    column("time/iteration_s", "seconds", 1, 7, 13),
    column(TO_GO, "to go", 0, 6, 5),
];

/// Columns that appear once their value is not zero.
const MOSTLY_ZERO: [&str; 3] = [SKIPPED, ENV_ERRORS, KL];

/// The table of iterations on a terminal. Its header repeats before the last one has scrolled away.
#[derive(Debug, Default)]
pub struct ConsoleTable {
    /// The metrics of [`MOSTLY_ZERO`] that have been non-zero.
    nonzero: Vec<&'static str>,
    /// The last header.
    header: String,
    /// Rows printed under it.
    rows: usize,
}

impl ConsoleTable {
    /// Shows the column of the KL from the first row on, for a run that has one.
    pub fn expect_kl(&mut self) {
        self.nonzero.push(KL);
    }

    /// The lines of a row on a terminal of this size: the header where one is due, and the row.
    pub fn lines(&mut self, row: &IterationRow, (height, width): (usize, usize)) -> Vec<String> {
        let nonzero = |metric: &&str| row.metrics.get(metric).is_some_and(|value| value != 0.0);
        let new: Vec<_> =
            MOSTLY_ZERO.into_iter().filter(nonzero).filter(|metric| !self.nonzero.contains(metric)).collect();
        self.nonzero.extend(new);

        let first = format!("{} {:>3.0}%", row.count(), row.percent());
        let first_width = first.len().max("iteration".len());
        let columns = self.columns(width.saturating_sub(first_width));
        let mut header = format!("{:>first_width$}", "iteration");
        let mut line = format!("{first:>first_width$}");
        for Column { metric, label, digits, width, .. } in columns {
            header += &format!("  {label:>width$}");
            let (text, bad) = match *metric {
                TO_GO => (row.to_go.map_or(String::new(), short_duration), false),
                _ => cell(row.metrics.get(metric), *digits, *width, [SKIPPED, ENV_ERRORS].contains(metric)),
            };
            let text = format!("{text:>width$}");
            line += "  ";
            line += &if bad { style(text).red().to_string() } else { text };
        }
        let cut = |line: String| console::truncate_str(&line, width, "").into_owned();
        let mut lines = Vec::new();
        // The screen holds a header, its rows, the bar and the prompt.
        if self.header != header || self.rows + 4 > height.max(8) {
            lines.push(cut(style(header.clone()).dim().to_string()));
            (self.header, self.rows) = (header, 0);
        }
        self.rows += 1;
        lines.push(cut(line));
        lines
    }

    /// The columns that fit, from left to right.
    fn columns(&self, width: usize) -> Vec<&'static Column> {
        let shown = |column: &&Column| !MOSTLY_ZERO.contains(&column.metric) || self.nonzero.contains(&column.metric);
        let all: Vec<&Column> = VALUES.iter().chain(REST).filter(shown).collect();
        let mut first = all.clone();
        first.sort_by_key(|column| column.order);
        let mut left = width;
        let fits = |column: &&&Column| {
            let room = left.checked_sub(column.width + 2);
            left = room.unwrap_or(0);
            room.is_some()
        };
        let last = first.iter().take_while(fits).last().map(|column| column.order);
        all.into_iter().filter(|column| last.is_some_and(|last| column.order <= last)).collect()
    }
}

/// Formats a number for a cell, with fewer digits where it would not fit. Returns the text and whether it is bad news.
fn cell(value: Option<f64>, digits: usize, width: usize, zero_is_good: bool) -> (String, bool) {
    let Some(value) = value else { return (String::new(), false) };
    let forms = (0..=digits).rev().map(|digits| fixed(value, digits));
    let forms = forms.chain([format!("{value:.1e}"), format!("{value:.0e}")]);
    let text = forms.into_iter().find(|text| text.len() <= width).unwrap_or_else(|| "#".repeat(width));
    (text, !value.is_finite() || (zero_is_good && value != 0.0))
}

/// A number with this many digits behind the point, without the sign of a zero.
fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let zero = text.strip_prefix('-').filter(|rest| rest.chars().all(|c| ['0', '.'].contains(&c)));
    zero.map_or(text.clone(), str::to_string)
}
