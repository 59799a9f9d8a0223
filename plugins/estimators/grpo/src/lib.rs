//! GRPO (Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1): a step is as good as its episode, compared
//! with the other episodes of its group G,
//!
//! ```text
//! A_i = (S_i - mean_G S) / (std_G S + 1e-6)         norm: std
//! A_i =  S_i - mean_G S                             norm: none   (Dr. GRPO, arXiv:2503.20783)
//! ```
//!
//! S_i is the sum of row i's token rewards, std has n - 1. `weighting` selects the scores in mean and std: those of
//! every step, or one per episode. Every response token of the row gets A_i. A group of equal scores gives 0; one with
//! a single score gives S_i itself.
//!
//! `pass_at_k` rewards the best of a group alone (Chen et al. 2025, arXiv:2503.19595), by its lead over the second,
//!
//! ```text
//! A_best = (S_best - S_second) / (std_G S + 1e-6)   all others 0
//! ```
//!
//! verl-agent takes rows for samples (`pass_at_k: row`); rows of one episode score the same, so most groups give 0. Its other
//! form takes the first step of each episode for a sample (`first_step`). `episode` gives that advantage to all steps of the
//! best episode. A group with one sample gives 0, where that code stops.
//!
//! The arithmetic is `episode_advantages` in the SDK (plugins/sdk/src/stats.rs), which GiGPO shares, and `lead` below.

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::stats::{Norm, Summary, Weighting, episode_advantages, group_by, row_scores};
use nestor_plugin::{Estimator, Rows, Scores};
use schemars::JsonSchema;
use serde::Deserialize;

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grpo {
    /// Divide by the group's standard deviation, or not.
    #[serde(default)]
    norm: Norm,
    /// The scores that a group's mean and standard deviation count.
    #[serde(default)]
    weighting: Weighting,
    /// Reward only the best sample of a group; null: compare all.
    #[serde(default)]
    pass_at_k: Option<Sample>,
}

/// Says which rows are samples of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sample {
    /// Every row.
    Row,
    /// The first step of every episode; the others get 0.
    FirstStep,
    /// Every episode, by its first step.
    Episode,
}

impl Estimator for Grpo {
    const ID: &'static str = "grpo";
    const DOC: &'static str = "GRPO: episode scores compared inside a group";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        Ok(config)
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let advantages = match self.pass_at_k {
            None => episode_advantages(rows, self.norm, self.weighting),
            Some(sample) => lead(rows, sample, self.norm),
        };
        out.broadcast(rows, &advantages);
        Ok(())
    }
}

/// The advantages of pass@k.
fn lead(rows: &Rows<'_>, sample: Sample, norm: Norm) -> Vec<f64> {
    let (scores, mut advantages) = (row_scores(rows), vec![0.0; rows.len()]);
    for group in group_by(rows.group) {
        let counts = |row: &usize| sample == Sample::Row || (rows.step[*row] == 0 && rows.duplicate_of[*row] < 0);
        let mut samples: Vec<usize> = group.iter().copied().filter(counts).collect();
        samples.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let [best, second, ..] = samples[..] else { continue };
        let values: Vec<f64> = samples.iter().map(|&row| scores[row]).collect();
        let Some(summary) = Summary::of(&values) else { continue };
        let advantage = Summary { mean: scores[second], ..summary }.advantage(scores[best], norm);
        let wins =
            |row: &usize| *row == best || (sample == Sample::Episode && rows.episode[*row] == rows.episode[best]);
        group.into_iter().filter(wins).for_each(|row| advantages[row] = advantage);
    }
    advantages
}

nestor_plugin::export! { estimators: [Grpo] }

#[cfg(test)]
mod tests;
