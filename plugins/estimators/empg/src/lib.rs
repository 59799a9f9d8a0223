//! EMPG (arXiv:2509.09265, ICLR 2026): GRPO's advantages scaled by the entropy of each step, with a bonus for clear next steps,
//!
//! ```text
//! A_i = B_i - mean B                                  over all rows of the batch
//! B_i = AE_i g_i + bonus exp(-k_next n_j)             j: the next step of the episode; no bonus after the last one
//! g_i = exp(-k n_i) / (mean exp(-k n) + 1e-8)         n_i = (h_i - min h) / (max h - min h + 1e-8)
//! ```
//!
//! AE is GRPO's, h_i the mean entropy of row i's response tokens under the policy that sampled. Mean, min and max are those of
//! the whole batch. A batch without a difference in AE and without a bonus gives exactly 0.
//!
//! The authors' code was not found. This is a third party's (ARLArena), with the step's number in place of a search in the
//! prompt's text. Another version in circulation, which scales the whole batch by each g_i, is wrong.

#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use nestor_plugin::returns::Order;
use nestor_plugin::stats::{Norm, Summary, Weighting, episode_advantages, weighted_sum};
use nestor_plugin::{Asked, Column, Rows, WeightedParts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Empg {
    /// Divide episode advantages by the group's standard deviation, or not.
    norm: Norm,
    /// The scores that the episode advantage's mean and standard deviation count.
    weighting: Weighting,
    /// Strength with which the entropy of a step scales its advantage.
    k: f64,
    /// Strength with which the entropy of the next step lowers the bonus.
    k_next: f64,
    /// The bonus for a next step of the lowest entropy.
    bonus: f64,
}

impl Default for Empg {
    fn default() -> Self {
        let (norm, weighting) = Default::default();
        Self { norm, weighting, k: 1.0, k_next: 1.0, bonus: 0.05 }
    }
}

impl WeightedParts for Empg {
    const ID: &'static str = "empg";
    const DOC: &'static str = "EMPG: GRPO's advantages scaled by the entropy of each step";
    const PARTS: &'static [&'static str] = &["episode_advantage", "bonus_advantage", "batch_mean", "step_entropy"];

    fn check(&self) -> Result<()> {
        let all = [self.k, self.k_next, self.bonus];
        ensure!(
            all.iter().all(|key| key.is_finite()),
            "config keys `k`, `k_next` and `bonus` must be finite, not {all:?}"
        );
        Ok(())
    }

    fn asked(&self) -> Vec<Asked> {
        vec![Column::Entropy.into()]
    }

    fn weights(&self) -> Vec<f64> {
        vec![1.0, 1.0, -1.0]
    }

    /// `episode_advantage` is AE g, `batch_mean` the mean of B, and `step_entropy` is h.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let Self { norm, weighting, k, k_next, bonus } = *self;
        let entropy = rows.entropy()?;
        let mean_of = |row: usize| -> f64 {
            let own = &entropy[rows.tokens(row)];
            own.iter().map(|&entropy| f64::from(entropy)).sum::<f64>() / own.len().max(1) as f64
        };
        let entropies: Vec<f64> = (0..rows.len()).map(mean_of).collect();
        let least = entropies.iter().copied().fold(f64::INFINITY, f64::min);
        let range = entropies.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
        let level: Vec<f64> = entropies.iter().map(|entropy| (entropy - least) / (range + 1e-8)).collect();

        let scale: Vec<f64> = level.iter().map(|n| (-k * n).exp()).collect();
        let mean_scale = Summary::of(&scale).map_or(1.0, |summary| summary.mean);
        let mut episodes = episode_advantages(rows, norm, weighting);
        episodes.iter_mut().zip(scale).for_each(|(advantage, scale)| *advantage *= scale / (mean_scale + 1e-8));
        let before = |next: usize| bonus * (-k_next * level[next]).exp();
        let bonuses = Order::of(rows)?.next().into_iter().map(|next| next.map_or(0.0, before)).collect();
        let mut parts = vec![episodes, bonuses];
        let mean = Summary::of(&weighted_sum(&parts, &[1.0, 1.0])?).map_or(0.0, |summary| summary.mean);
        parts.extend([vec![mean; rows.len()], entropies]);
        Ok(parts)
    }
}

nestor_plugin::export! { estimators: [Empg + parts + columns] }

#[cfg(test)]
mod tests;
