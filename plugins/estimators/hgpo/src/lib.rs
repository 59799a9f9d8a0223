//! HGPO (arXiv:2602.22817, ICLR 2026): a step's return is compared with those of the steps that share its state, of those that
//! also share the state before it, and so on,
//!
//! ```text
//! A_i = sum_k w_k a_k                                w_k = (k + 1)^alpha / (sum of these over i's items + 1e-6)
//! a_k = (R_i - mean_C R) / (std_C R + 1e-6)          C: the rows of i's group with i's last k states, k = 1 to history + 1
//! ```
//!
//! R is GiGPO's step return less the step's own penalty, std has n (not n - 1), and `norm: none` omits the division. A step
//! that is alone in C has no item k. `base_group` adds GRPO's episode advantage as item 0; without it no term compares
//! episodes. Items of 0 are left out, and so are their weights.
//!
//! Deviations from verl-agent's recipe/hgpo: an item counts as 0 where C is constant or |R_i - mean| < 1e-6 max_C |R|,
//! because there rounding decides: the rule is the same at every scale of rewards. Its key `weight_type`, which nothing reads, is absent.

#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use nestor_plugin::anchor::{Anchor, anchor_group, check_similarity};
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{EPSILON, Norm, Spread, Summary, Weighting, episode_advantages, group_by};
use nestor_plugin::{Rows, WeightedParts, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hgpo {
    /// Divide by standard deviations, on all levels, or not. Those of histories have divisor n.
    norm: Norm,
    /// Discount of the step returns.
    gamma: f64,
    /// Number of earlier states that a comparison may include; the published runs take the length of the prompt's history,
    /// 2 or 4.
    history: u32,
    /// Power of the weights: 0 gives all levels the same weight.
    alpha: f64,
    /// Add the episode advantage as a level of its own.
    base_group: bool,
    /// The scores that the episode advantage's mean and standard deviation count.
    weighting: Weighting,
    /// Definition of a state.
    anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    similarity: Option<f64>,
}

impl Default for Hgpo {
    fn default() -> Self {
        let (norm, base_group, weighting, anchor, similarity) = Default::default();
        Self { norm, gamma: 0.95, history: 2, alpha: 1.0, base_group, weighting, anchor, similarity }
    }
}

impl WeightedParts for Hgpo {
    const ID: &'static str = "hgpo";
    const DOC: &'static str = "HGPO: step returns compared in groups of equal histories of states";
    const PARTS: &'static [&'static str] = &["episode_advantage", "history_advantage", "step_return", "anchor_group"];

    fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        ensure!(self.alpha.is_finite(), "config key `alpha` must be a finite number, not {}", self.alpha);
        check_similarity(self.similarity)
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(self.anchor)
    }

    fn weights(&self) -> Vec<f64> {
        vec![1.0, 1.0]
    }

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let Self { norm, gamma, history, alpha, base_group, weighting, anchor, similarity } = *self;
        let keys = anchor.read(rows)?;
        let states = keys.states(rows, similarity)?;
        let (returns, previous) = (step_returns(rows, gamma)?, keys.order.previous());
        let mut episodes = if base_group { episode_advantages(rows, norm, weighting) } else { vec![0.0; rows.len()] };
        episodes.iter_mut().filter(|item| item.abs() <= 1e-9).for_each(|item| *item = 0.0);
        // The sum of each row's weights, and of its weighted items from k = 1 on.
        let mut weights: Vec<f64> = episodes.iter().map(|item| f64::from(u8::from(*item != 0.0))).collect();
        let mut histories = vec![0.0; rows.len()];
        let last_states = |row: usize, k: u32| {
            let earlier = std::iter::successors(Some(row), |&row| previous[row]).map(|row| states[row]);
            let last: Vec<usize> = earlier.take(k as usize).collect();
            (last.len() == k as usize).then_some((row, last))
        };
        for k in 1..=history + 1 {
            let weight = f64::from(k + 1).powf(alpha);
            let known: Vec<(usize, Vec<usize>)> = (0..rows.len()).filter_map(|row| last_states(row, k)).collect();
            for cluster in group_by(known.iter().map(|(_, last)| last)).iter().filter(|cluster| cluster.len() > 1) {
                let members = || cluster.iter().map(|&member| known[member].0);
                let values: Vec<f64> = members().map(|row| returns[row]).collect();
                let Some(summary) = Summary::of(&values) else { continue };
                let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
                let least = if summary.std == 0.0 { f64::INFINITY } else { 1e-6 * largest };
                for row in members().filter(|&row| (returns[row] - summary.mean).abs() >= least) {
                    weights[row] += weight;
                    histories[row] += weight * summary.with(Spread::Population).advantage(returns[row], norm);
                }
            }
        }
        for (row, weights) in weights.into_iter().enumerate() {
            episodes[row] /= weights + EPSILON;
            histories[row] /= weights + EPSILON;
        }
        Ok(vec![episodes, histories, returns, anchor_group(&states)])
    }
}

nestor_plugin::export! { estimators: [Hgpo + parts + columns] }

#[cfg(test)]
mod tests;
