//! PPO's advantages: generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438) on a critic's values V,
//!
//! ```text
//! delta_k = r_k + gamma V_{k+1} - V_k                A_k = delta_k + gamma lambda A_{k+1}
//! returns_k = A_k + V_k                              A whitened over all response tokens of the batch
//! ```
//!
//! `horizon: step` (the reference implementation): k runs over the L response tokens of one step, whose last token
//! carries the whole episode's return. The critic also sees the state after the last token; its value V_L enters
//! delta_{L-1}, and A_L = -V_L, since nothing follows: with lambda 1 the two cancel.
//!
//! `horizon: episode`: k runs over the steps of one episode, V_k is the value before the step's first token and r_k the
//! step's own reward. All tokens of the step get its A_k and its return. An episode's end counts as terminal, also where
//! it was cut: the step limit is part of the task.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use anyhow::{Context, Result};
use nestor_plugin::stats::whiten;
use nestor_plugin::{Estimator, Needs, Rows, Scores, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ppo {
    /// Discount per token (`horizon: step`) or per step (`horizon: episode`).
    gamma: f64,
    /// Decay of the estimate: 0 trusts the critic, 1 the returns.
    lambda: f64,
    /// Chain over which the estimate runs.
    horizon: Horizon,
}

impl Default for Ppo {
    fn default() -> Self {
        Self { gamma: 1.0, lambda: 1.0, horizon: Horizon::Step }
    }
}

/// Chain over which the estimate runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Horizon {
    /// The response tokens of one step.
    #[default]
    Step,
    /// The steps of one episode.
    Episode,
}

impl Estimator for Ppo {
    const ID: &'static str = "ppo";
    const DOC: &'static str = "PPO: generalised advantage estimation on a critic's values";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        check_between("gamma", config.gamma, 0.0..=1.0)?;
        check_between("lambda", config.lambda, 0.0..=1.0)?;
        Ok(config)
    }

    fn needs(&self) -> Needs {
        Needs { values: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let (mut advantages, returns) = match self.horizon {
            Horizon::Step => self.inside_steps(rows)?,
            Horizon::Episode => self.over_episodes(rows)?,
        };
        whiten(&mut advantages);
        let numbers = |from: Vec<f64>, to: &mut [f32]| to.iter_mut().zip(from).for_each(|(to, from)| *to = from as f32);
        numbers(advantages, out.advantages);
        numbers(returns, out.returns);
        Ok(())
    }
}

impl Ppo {
    /// Computes A and returns of a chain of rewards; `values` has one entry more, for the state after the last.
    fn chain(&self, rewards: &[f64], values: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let Self { gamma, lambda, .. } = *self;
        let last = rewards.len();
        let mut advantages = vec![0.0; last];
        let mut next = -values[last];
        for k in (0..last).rev() {
            next = rewards[k] + gamma * values[k + 1] - values[k] + gamma * lambda * next;
            advantages[k] = next;
        }
        let returns = advantages.iter().zip(values).map(|(a, v)| a + v).collect();
        (advantages, returns)
    }

    /// Computes one chain per row.
    fn inside_steps(&self, rows: &Rows<'_>) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut advantages, mut returns) = (Vec::new(), Vec::new());
        for row in 0..rows.len() {
            let (a, r) = self.chain(&rows.token_rewards[rows.tokens(row)], &values(rows, row)?);
            advantages.extend(a);
            returns.extend(r);
        }
        Ok((advantages, returns))
    }

    /// Computes one chain per episode. Copies take their source's numbers.
    fn over_episodes(&self, rows: &Rows<'_>) -> Result<(Vec<f64>, Vec<f64>)> {
        let mut episodes: HashMap<u32, Vec<usize>> = HashMap::new();
        for row in (0..rows.len()).filter(|&row| rows.duplicate_of[row] < 0) {
            episodes.entry(rows.episode[row]).or_default().push(row);
        }
        let mut by_row = vec![(0.0, 0.0); rows.len()];
        for steps in episodes.values_mut() {
            steps.sort_unstable_by_key(|&row| rows.step[row]);
            let episode_return: f64 = steps.iter().map(|&row| rows.reward[row]).sum();
            // The tokens carry the episode's return, less the penalty, and KL-in-reward: the last two are the step's own.
            let own = |row: usize| rows.token_rewards[rows.tokens(row)].iter().sum::<f64>() - episode_return;
            let rewards: Vec<f64> = steps.iter().map(|&row| rows.reward[row] + own(row)).collect();
            let mut chain = steps.iter().map(|&row| Ok(values(rows, row)?[0])).collect::<Result<Vec<f64>>>()?;
            chain.push(0.0);
            let (advantages, returns) = self.chain(&rewards, &chain);
            for (&row, scores) in steps.iter().zip(advantages.into_iter().zip(returns)) {
                by_row[row] = scores;
            }
        }
        let (mut advantages, mut returns) = (Vec::new(), Vec::new());
        for row in 0..rows.len() {
            let source = usize::try_from(rows.duplicate_of[row]).unwrap_or(row);
            let &(a, r) = by_row.get(source).with_context(|| format!("row {row} is a copy of row {source}: none"))?;
            let tokens = rows.tokens(row).len();
            advantages.extend(std::iter::repeat_n(a, tokens));
            returns.extend(std::iter::repeat_n(r, tokens));
        }
        Ok((advantages, returns))
    }
}

/// Returns V_0 to V_L of a row.
fn values(rows: &Rows<'_>, row: usize) -> Result<Vec<f64>> {
    let values = rows.values_of(row).context("the host gave no values")?;
    Ok(values.iter().map(|&v| f64::from(v)).collect())
}

nestor_plugin::export! { estimators: [Ppo] }

#[cfg(test)]
mod tests;
