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

mod config;

use anyhow::Result;
use nestor_plugin::anchor::anchor_group;
use nestor_plugin::graph::{Edge, edge, success_distances};
use nestor_plugin::returns::penalise;
use nestor_plugin::stats::{Spread, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Column, Columns, Estimator, Needs, Parts, Rows, Scores};

use self::config::Config;

pub struct GraphGpo(Config);

impl Estimator for GraphGpo {
    const ID: &'static str = "graphgpo";
    const DOC: &'static str = "GraphGPO: distances to success in the graph of all visited states";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self(config))
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.weighted_sum::<Self>(rows, &self.parts(rows)?, &[self.0.step_weight, self.0.episode_weight])
    }
}

impl Parts for GraphGpo {
    const NAMES: &'static [&'static str] = &["step_advantage", "episode_advantage", "anchor_group"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let keys = self.0.anchor.read(rows)?;
        let solved = self.0.success.read(rows, &keys.order)?;
        let mut values = vec![0.0; rows.len()];
        for group in group_by(rows.group) {
            let edges: Vec<Edge> = group.iter().map(|&row| edge(&keys, row, solved[row])).collect::<Result<_>>()?;
            for (row, [before, after]) in group.into_iter().zip(success_distances(&edges, self.0.similarity)?) {
                let exponent = if self.0.normalize_distance { after - before + 1.0 } else { after };
                values[row] = 10.0 * self.0.gamma.powf(exponent);
            }
        }
        penalise(rows, &mut values);
        let states = keys.states(rows, None)?;
        let steps = group_advantages(&values, &group_by(&states), self.0.norm, Spread::Sample);
        Ok(vec![steps, episode_advantages(rows, self.0.norm, self.0.weighting), anchor_group(&states)])
    }
}

impl Columns for GraphGpo {
    fn columns(&self) -> Vec<Asked> {
        [vec![Column::NextAnchor.into()], self.0.anchor.columns(), self.0.success.columns()].concat()
    }
}

nestor_plugin::export! { estimators: [GraphGpo + parts + columns] }

#[cfg(test)]
mod tests;
