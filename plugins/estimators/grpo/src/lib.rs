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
//! The arithmetic is `episode_advantages` in the SDK (plugins/sdk/src/stats.rs), which GiGPO shares.

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::stats::{Norm, Weighting, episode_advantages};
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
}

impl Estimator for Grpo {
    const ID: &'static str = "grpo";
    const DOC: &'static str = "GRPO: episode scores compared inside a group";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        Ok(config)
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.broadcast(rows, &episode_advantages(rows, self.norm, self.weighting));
        Ok(())
    }
}

nestor_plugin::export! { estimators: [Grpo] }

#[cfg(test)]
mod tests;
