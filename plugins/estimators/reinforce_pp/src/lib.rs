//! REINFORCE++ (Hu 2025, arXiv:2501.03262): no critic, no comparison inside a group, but advantages whitened over the
//! whole batch,
//!
//! ```text
//! A_k = whiten(G_k),   G_k = r_k + gamma G_{k+1}      baseline: none; k runs over a step's response tokens
//! A_i = whiten(S_i - mean_G S)                        baseline: group; the same for all tokens of row i
//! ```
//!
//! S_i is the sum of row i's token rewards; the group's mean counts every step, and a group of one step has none.
//! Whitening counts every response token, so long responses weigh more.

#![forbid(unsafe_code)]

use anyhow::Result;
use nestor_plugin::stats::{Summary, group_by, row_scores, whiten};
use nestor_plugin::{Estimator, Rows, Scores, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReinforcePp {
    /// Discount per token of `baseline: none`; a group's baseline compares undiscounted scores.
    gamma: f64,
    /// Baseline that is subtracted before whitening.
    baseline: Baseline,
}

impl Default for ReinforcePp {
    fn default() -> Self {
        Self { gamma: 1.0, baseline: Baseline::None }
    }
}

/// Baseline that is subtracted before whitening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// No baseline.
    #[default]
    None,
    /// The mean score of the group's steps.
    Group,
}

impl Estimator for ReinforcePp {
    const ID: &'static str = "reinforce_pp";
    const DOC: &'static str = "REINFORCE++: returns whitened over the whole batch";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        check_between("gamma", config.gamma, 0.0..=1.0)?;
        Ok(config)
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let returns = match self.baseline {
            Baseline::None => token_returns(rows, self.gamma),
            Baseline::Group => against_the_group(rows),
        };
        let mut advantages = returns.clone();
        whiten(&mut advantages);
        for (token, (advantage, value)) in advantages.iter().zip(returns).enumerate() {
            out.advantages[token] = *advantage as f32;
            out.returns[token] = value as f32;
        }
        Ok(())
    }
}

/// Computes G of every token.
fn token_returns(rows: &Rows<'_>, gamma: f64) -> Vec<f64> {
    let mut returns = rows.token_rewards.to_vec();
    for row in 0..rows.len() {
        let mut next = 0.0;
        for value in returns[rows.tokens(row)].iter_mut().rev() {
            *value += gamma * next;
            next = *value;
        }
    }
    returns
}

/// Computes S less the mean of its group, for every token.
fn against_the_group(rows: &Rows<'_>) -> Vec<f64> {
    let scores = row_scores(rows);
    let mut centred = vec![0.0; rows.token_rewards.len()];
    for members in group_by(rows.group) {
        let of_group: Vec<f64> = members.iter().map(|&row| scores[row]).collect();
        let mean = Summary::of(&of_group).filter(|summary| summary.count > 1).map_or(0.0, |summary| summary.mean);
        for row in members {
            centred[rows.tokens(row)].fill(scores[row] - mean);
        }
    }
    centred
}

nestor_plugin::export! { estimators: [ReinforcePp] }

#[cfg(test)]
mod tests;
