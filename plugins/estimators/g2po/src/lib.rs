//! G2PO (arXiv:2606.22995): values of states are compared twice, where a step leads (node) and how much it gains (edge),
//!
//! ```text
//! A_i = AE_i + step_weight * node_i + step_weight * edge_i
//! V(x) = mean of value_gamma^(T - t) E             over the rows of the group in state x; T: steps of the episode, t from 0
//! N_i = V(state after i), or after the last step success_reward if solved, else 0
//! node_i = Z(N_i - node_penalty (1 - valid_i))     Z over the rows of i's group in i's state
//! edge_i = Z(N_i - V(state of i))                  Z over the rows of i's group
//! ```
//!
//! AE is GRPO's, E the sum of the episode's rewards without penalties. Z(x) = (x - mean) / (std + 1e-6), std with n - 1;
//! `norm: none` omits the division. Z of a value that is alone is 0.
//!
//! Deviations from g2po/core_g2po.py: success is the environment's flag, where that code asks whether E is 10; 0.95, 0.1
//! and 10 are keys; a group of one row gives an edge part of 0, not NaN.

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::anchor::{Anchor, anchor_group, check_similarity};
use nestor_plugin::stats::{Norm, Spread, Weighting, episode_advantages, group_advantages, group_by, state_means};
use nestor_plugin::{Asked, Rows, Success, WeightedParts, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct G2po {
    /// Divide by standard deviations, in all parts, or not.
    norm: Norm,
    /// The scores that the episode part's mean and standard deviation count.
    weighting: Weighting,
    /// Weight of the node part and the edge part.
    step_weight: f64,
    /// Discount of the returns in a state's value.
    value_gamma: f64,
    /// Penalty of an invalid response in the node part.
    node_penalty: f64,
    /// Value of the end of a solved episode.
    success_reward: f64,
    /// Test of an episode's success: `flag`, `{return_above: 0}` or `{return_equals: 10}`.
    success: Success,
    /// Definition of a state.
    anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    similarity: Option<f64>,
}

impl Default for G2po {
    fn default() -> Self {
        let (weighting, success, anchor, similarity) = Default::default();
        Self {
            norm: Norm::None,
            weighting,
            step_weight: 1.0,
            value_gamma: 0.95,
            node_penalty: 0.1,
            success_reward: 10.0,
            success,
            anchor,
            similarity,
        }
    }
}

impl WeightedParts for G2po {
    const ID: &'static str = "g2po";
    const DOC: &'static str = "G2PO: values of states, compared by node and by edge of the graph of states";
    const PARTS: &'static [&'static str] = &["episode_advantage", "node_advantage", "edge_advantage", "anchor_group"];

    fn check(&self) -> Result<()> {
        check_between("value_gamma", self.value_gamma, 0.0..=1.0)?;
        check_similarity(self.similarity)
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(self.anchor)
    }

    fn asked(&self) -> Vec<Asked> {
        self.success.columns()
    }

    fn weights(&self) -> Vec<f64> {
        vec![1.0, self.step_weight, self.step_weight]
    }

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let keys = self.anchor.read(rows)?;
        let (states, order) = (keys.states(rows, self.similarity)?, &keys.order);
        let solved = self.success.read(rows, order)?;
        let ends = order.steps_left().into_iter().zip(order.episode_sums(rows.reward));
        let discounted: Vec<f64> = ends.map(|(left, sum)| self.value_gamma.powi(left as i32) * sum).collect();
        let value = state_means(rows, &states, &discounted);
        let end = |row: usize| if solved[row] { self.success_reward } else { 0.0 };
        let next = order.next().into_iter().enumerate();
        let next: Vec<f64> = next.map(|(row, next)| next.map_or(end(row), |next| value[states[next]])).collect();

        let penalised = |row: usize| next[row] - self.node_penalty * f64::from(1 - rows.valid[row]);
        let node: Vec<f64> = (0..rows.len()).map(penalised).collect();
        let edge: Vec<f64> = (0..rows.len()).map(|row| next[row] - value[states[row]]).collect();
        let z = |values: &[f64], groups| group_advantages(values, groups, self.norm, Spread::Sample);
        let (node, edge) = (z(&node, &group_by(&states)), z(&edge, &group_by(rows.group)));
        Ok(vec![episode_advantages(rows, self.norm, self.weighting), node, edge, anchor_group(&states)])
    }
}

nestor_plugin::export! { estimators: [G2po + parts + columns] }

#[cfg(test)]
mod tests;
