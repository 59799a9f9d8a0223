//! GraphGPO (arXiv:2605.26684, ICML 2026): steps are worth more the nearer they lead to success in the graph of all visited
//! states. In each group every step is an edge from its state to the next one; the last step of a solved episode leads to the
//! node "success". d(x) is the number of edges on the shortest path from x to that node,
//!
//! ```text
//! A_i = step_weight (q_i - mean_C q) / (std_C q + 1e-6) + episode_weight AE_i      C: rows of i's group with i's state
//! q_i = 10 gamma^d(n_i), or 10 gamma^(d(n_i) - d(s_i) + 1); then less the step's own penalty
//! ```
//!
//! AE is GRPO's, std has n - 1, `norm: none` omits the divisions, n_i is the node after step i. A state that does not reach
//! success has the largest finite distance plus 1; without any success all have 1. `similarity` merges nodes of the graph
//! only: C holds equal states.
//!
//! Deviations from verl-agent's recipe/GraphGPO: success is the environment's flag, where that code takes a return above 0
//! (`success: {return_above: 0}`). The published runs also show the policy other observations, which no estimator can.

#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use nestor_plugin::anchor::{Anchor, anchor_group, check_similarity};
use nestor_plugin::graph::{Edge, edge, success_distances};
use nestor_plugin::returns::penalise;
use nestor_plugin::stats::{Norm, Spread, Weighting, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Column, Rows, Success, WeightedParts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GraphGpo {
    /// Divide by standard deviations, on both levels, or not.
    norm: Norm,
    /// The scores that the episode part's mean and standard deviation count.
    weighting: Weighting,
    /// Factor for each edge between a state and success; published: 0.1 on ALFWorld, 0.2 on WebShop, 0.8 on Sokoban.
    gamma: f64,
    /// Compare the distance after a step with that before it.
    normalize_distance: bool,
    /// Weight of the step-level advantage.
    step_weight: f64,
    /// Weight of the episode-level advantage.
    episode_weight: f64,
    /// Test of an episode's success: `flag`, `{return_above: 0}` or `{return_equals: 10}`.
    success: Success,
    /// Definition of a state.
    anchor: Anchor,
    /// States at least this similar (difflib's ratio, between 0 and 1) are one node of the graph; null: only equal ones.
    similarity: Option<f64>,
}

impl Default for GraphGpo {
    fn default() -> Self {
        let (norm, weighting, normalize_distance, success, anchor, similarity) = Default::default();
        let (gamma, step_weight, episode_weight) = (0.1, 1.0, 1.0);
        Self { norm, weighting, gamma, normalize_distance, step_weight, episode_weight, success, anchor, similarity }
    }
}

impl WeightedParts for GraphGpo {
    const ID: &'static str = "graphgpo";
    const DOC: &'static str = "GraphGPO: distances to success in the graph of all visited states";
    const PARTS: &'static [&'static str] = &["step_advantage", "episode_advantage", "anchor_group"];

    fn check(&self) -> Result<()> {
        let gamma = self.gamma;
        ensure!(gamma > 0.0 && gamma <= 1.0, "config key `gamma` must be above 0 and at most 1, not {gamma}");
        check_similarity(self.similarity)
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(self.anchor)
    }

    fn asked(&self) -> Vec<Asked> {
        [vec![Column::NextAnchor.into()], self.success.columns()].concat()
    }

    fn weights(&self) -> Vec<f64> {
        vec![self.step_weight, self.episode_weight]
    }

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let keys = self.anchor.read(rows)?;
        let solved = self.success.read(rows, &keys.order)?;
        let mut values = vec![0.0; rows.len()];
        for group in group_by(rows.group) {
            let edges: Vec<Edge> = group.iter().map(|&row| edge(&keys, row, solved[row])).collect::<Result<_>>()?;
            for (row, [before, after]) in group.into_iter().zip(success_distances(&edges, self.similarity)?) {
                let exponent = if self.normalize_distance { after - before + 1.0 } else { after };
                values[row] = 10.0 * self.gamma.powf(exponent);
            }
        }
        penalise(rows, &mut values);
        let states = keys.states(rows, None)?;
        let steps = group_advantages(&values, &group_by(&states), self.norm, Spread::Sample);
        Ok(vec![steps, episode_advantages(rows, self.norm, self.weighting), anchor_group(&states)])
    }
}

nestor_plugin::export! { estimators: [GraphGpo + parts + columns] }

#[cfg(test)]
mod tests;
