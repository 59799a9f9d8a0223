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

mod config;

use anyhow::Result;
use nestor_plugin::anchor::anchor_group;
use nestor_plugin::stats::{Spread, episode_advantages, group_advantages, group_by, state_means};
use nestor_plugin::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores};

use self::config::Config;

pub struct G2po(Config);

impl Estimator for G2po {
    const ID: &'static str = "g2po";
    const DOC: &'static str = "G2PO: values of states, compared by node and by edge of the graph of states";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self(config))
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.weighted_sum::<Self>(rows, &self.parts(rows)?, &[1.0, self.0.step_weight, self.0.step_weight])
    }
}

impl Parts for G2po {
    const NAMES: &'static [&'static str] = &["episode_advantage", "node_advantage", "edge_advantage", "anchor_group"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let keys = self.0.anchor.read(rows)?;
        let (states, order) = (keys.states(rows, self.0.similarity)?, &keys.order);
        let solved = self.0.success.read(rows, order)?;
        let ends = order.steps_left().into_iter().zip(order.episode_sums(rows.reward));
        let discounted: Vec<f64> = ends.map(|(left, sum)| self.0.value_gamma.powi(left as i32) * sum).collect();
        let value = state_means(rows, &states, &discounted);
        let end = |row: usize| if solved[row] { self.0.success_reward } else { 0.0 };
        let next = order.next().into_iter().enumerate();
        let next: Vec<f64> = next.map(|(row, next)| next.map_or(end(row), |next| value[states[next]])).collect();

        let penalised = |row: usize| next[row] - self.0.node_penalty * f64::from(1 - rows.valid[row]);
        let node: Vec<f64> = (0..rows.len()).map(penalised).collect();
        let edge: Vec<f64> = (0..rows.len()).map(|row| next[row] - value[states[row]]).collect();
        let z = |values: &[f64], groups| group_advantages(values, groups, self.0.norm, Spread::Sample);
        let (node, edge) = (z(&node, &group_by(&states)), z(&edge, &group_by(rows.group)));
        Ok(vec![episode_advantages(rows, self.0.norm, self.0.weighting), node, edge, anchor_group(&states)])
    }
}

impl Columns for G2po {
    fn columns(&self) -> Vec<Asked> {
        [self.0.anchor.columns(), self.0.success.columns()].concat()
    }
}

nestor_plugin::export! { estimators: [G2po + parts + columns] }

#[cfg(test)]
mod tests;
