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
//! The arithmetic is `episode_advantages` in the SDK (plugins/sdk/src/stats.rs), which GiGPO shares, and `lead` in pass_at_k.rs.

#![forbid(unsafe_code)]

mod pass_at_k;

use anyhow::Result;
use nestor_plugin::stats::{Norm, Weighting, episode_advantages};
use nestor_plugin::{Rows, WeightedParts};
use schemars::JsonSchema;
use serde::Deserialize;

use self::pass_at_k::{Sample, lead};

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

impl WeightedParts for Grpo {
    const ID: &'static str = "grpo";
    const DOC: &'static str = "GRPO: episode scores compared inside a group";
    const PARTS: &'static [&'static str] = &["episode_advantage"];

    fn weights(&self) -> Vec<f64> {
        vec![1.0]
    }

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        Ok(vec![match self.pass_at_k {
            None => episode_advantages(rows, self.norm, self.weighting),
            Some(sample) => lead(rows, sample, self.norm),
        }])
    }
}

nestor_plugin::export! { estimators: [Grpo + parts] }

#[cfg(test)]
mod tests;
