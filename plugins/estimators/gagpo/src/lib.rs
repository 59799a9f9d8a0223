//! GAGPO (arXiv:2605.13217): generalised advantage estimation on the mean returns of states, without a critic,
//!
//! ```text
//! A_i     = Z(G_i)                                      Z over the rows of i's group
//! G_t     = delta_t + gamma lambda G_t+1
//! delta_t = r_t + gamma V(s_t+1) - V(s_t)               V(s): mean R over the rows of the group in state s; 0 after the end
//! ```
//!
//! r is the environment's reward less the step's penalty, R is GiGPO's step return less the step's own penalty.
//! Z(x) = (x - mean) / (std + 1e-6), std with n (not n - 1); `norm: none` omits the division. No term compares episodes.
//!
//! The authors released no code. This is a third party's (UCOB), fed with the rewards of steps: its trainer passes the sum of
//! the episode's rewards at every step. The paper's loss takes one length-normalised importance ratio for each action, which
//! is `update.loss: gspo` in the recipe.

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::anchor::{Anchor, anchor_group, check_similarity};
use nestor_plugin::returns::{penalise, step_returns};
use nestor_plugin::stats::{Norm, Spread, group_advantages, group_by, state_means};
use nestor_plugin::{Rows, WeightedParts, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Gagpo {
    /// Divide by the group's standard deviation (with divisor n), or not.
    norm: Norm,
    /// Discount of rewards and values.
    gamma: f64,
    /// Discount of later differences, as in generalised advantage estimation.
    lambda: f64,
    /// Definition of a state.
    anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    similarity: Option<f64>,
}

impl Default for Gagpo {
    fn default() -> Self {
        let (norm, anchor, similarity) = Default::default();
        Self { norm, gamma: 0.95, lambda: 0.8, anchor, similarity }
    }
}

impl WeightedParts for Gagpo {
    const ID: &'static str = "gagpo";
    const DOC: &'static str = "GAGPO: generalised advantages on the mean returns of states";
    const PARTS: &'static [&'static str] = &["step_advantage", "state_value", "step_return", "anchor_group"];

    fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        check_between("lambda", self.lambda, 0.0..=1.0)?;
        check_similarity(self.similarity)
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(self.anchor)
    }

    fn weights(&self) -> Vec<f64> {
        vec![1.0]
    }

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let keys = self.anchor.read(rows)?;
        let states = keys.states(rows, self.similarity)?;
        let returns = step_returns(rows, self.gamma)?;
        let means = state_means(rows, &states, &returns);
        let values: Vec<f64> = states.iter().map(|&state| means[state]).collect();
        let mut deltas = rows.reward.to_vec();
        penalise(rows, &mut deltas);
        for (row, delta) in deltas.iter_mut().enumerate() {
            let next = keys.next(row).map_or(0.0, |next| values[next]);
            *delta += self.gamma * next - values[row];
        }
        let sums = keys.order.discounted_sums(&deltas, self.gamma * self.lambda);
        let steps = group_advantages(&sums, &group_by(rows.group), self.norm, Spread::Population);
        Ok(vec![steps, values, returns, anchor_group(&states)])
    }
}

nestor_plugin::export! { estimators: [Gagpo + parts + columns] }

#[cfg(test)]
mod tests;
