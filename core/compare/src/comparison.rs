//! The result of a comparison.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measures::{Best, Reached};
use crate::stats::Estimate;

/// A comparison of groups of runs. Success and differences are shares, from 0 to 1.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Name of the evaluation panel.
    pub panel: String,
    /// Hash of the panel's tasks.
    pub panel_sha256: String,
    pub tasks: usize,
    /// Episodes per task in an evaluation.
    pub samples: u32,
    pub window: Window,
    pub threshold: f64,
    /// The group that the differences are against.
    pub against: String,
    pub groups: Vec<GroupResult>,
    /// One for each other group.
    pub differences: Vec<Difference>,
    /// Keys besides the estimator's own that differ between the groups, each with its values.
    pub recipe_differences: Vec<String>,
    /// Differences that make the comparison unfair; only of a comparison that was asked for anyway.
    pub obstacles: Vec<String>,
}

/// The last evaluations, whose mean is compared.
#[derive(Debug, Clone, Serialize)]
pub struct Window {
    pub evaluations: usize,
    /// The iterations of the first and the last of them.
    pub from: u64,
    pub to: u64,
}

/// A group's results.
#[derive(Debug, Clone, Serialize)]
pub struct GroupResult {
    pub name: String,
    /// Names of its runs, by ascending seed.
    pub runs: Vec<String>,
    pub seeds: Vec<u64>,
    /// Success of the last evaluation.
    pub last: Estimate,
    /// Mean success of the window's evaluations.
    pub window: Estimate,
    /// Mean success over the run: the area under the curve of evaluations.
    pub area: Estimate,
    pub threshold: Reached,
    /// Means over seeds; none for a panel of one task, or without halvings.
    pub best: Option<Best>,
    /// Success in the window by kind of task.
    pub types: BTreeMap<String, Estimate>,
    pub used: Used,
}

/// Means over seeds of a run's use; none where the runs do not tell.
#[derive(Debug, Clone, Serialize)]
pub struct Used {
    pub iterations: Option<f64>,
    /// Episodes of training.
    pub episodes: Option<f64>,
    /// Turns of an episode, mean over iterations.
    pub turns: Option<f64>,
    /// Generated tokens of training.
    pub tokens: Option<f64>,
    /// Hours of all iterations.
    pub hours: Option<f64>,
    /// Share of that time that the advantages took.
    pub advantage_share: Option<f64>,
    /// Largest peak of resident memory.
    pub peak_rss_bytes: Option<f64>,
}

/// A group's success minus that of the group compared against.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    pub group: String,
    pub against: String,
    /// Seeds compared: pairs, or those of either group.
    pub seeds: [usize; 2],
    /// True if the difference is the mean of the differences of shared seeds.
    pub paired: bool,
    /// In the window's mean.
    pub window: f64,
    /// The 95 % interval: t over pairs of seeds, or Welch's; none of a single seed.
    pub interval: Option<[f64; 2]>,
    /// Two-sided p-value of the window's difference.
    pub p: Option<f64>,
    /// The p-value after Holm's correction for all differences of the comparison.
    pub p_holm: Option<f64>,
    /// The 95 % percentile interval of the hierarchical bootstrap over seeds and tasks.
    pub bootstrap: Option<[f64; 2]>,
    /// In the last evaluation, with its 95 % interval.
    pub last: f64,
    pub last_interval: Option<[f64; 2]>,
    /// Pairs of seed and task in which the group, and the other one, won more samples of the last evaluation; shared
    /// seeds only.
    pub discordant: Option<[u64; 2]>,
    /// The p-value of McNemar's exact test of these pairs, corrected by Holm's method.
    pub p_mcnemar: Option<f64>,
    /// The true difference that about 4 of 5 such comparisons would call.
    pub detectable: Option<f64>,
    /// True if the corrected p-value is below 4 %, and the bootstrap's interval does not hold 0.
    pub exceeds_noise: bool,
    /// The verdict in words.
    pub words: String,
}
