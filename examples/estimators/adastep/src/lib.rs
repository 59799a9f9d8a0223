//! AdaStep (arXiv 2610.03223): GiGPO whose step-level advantage counts as much as the actions of a state explain its returns.
//!
//! ```text
//! A_i = AE_i + w(C) AS_i                               C: the rows of i's group with i's anchor
//! w   = 1 - sum_a (n_a / n) Var_a(R) / Var(R)          a: the actions taken in C; population variances, w in [0, 1]
//! ```
//!
//! AE and AS are GiGPO's, and R is its step return less the step's own penalty. Where C has one action, an action taken once,
//! or equal returns, w is 1.

use nestor_plugin::anyhow::{Context, Result, ensure};
use nestor_plugin::stats::{Norm, Summary, Weighting, episode_advantages, group_by, step_returns};
use nestor_plugin::{Asked, Column, Columns, Estimator, Needs, Rows, Scores, schemars, serde};

struct AdaStep {
    config: Config,
}

/// The keys of `estimator.config`.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(crate = "nestor_plugin::serde", deny_unknown_fields)]
#[schemars(crate = "nestor_plugin::schemars")]
struct Config {
    /// Divide by standard deviations, on both levels, or not.
    #[serde(default)]
    norm: Norm,
    /// Discount of the step returns.
    #[serde(default = "default_gamma")]
    gamma: f64,
}

fn default_gamma() -> f64 {
    0.95
}

impl Estimator for AdaStep {
    const ID: &'static str = "adastep";
    const DOC: &'static str = "AdaStep: GiGPO with the step level weighed by what actions explain";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let gamma = config.gamma;
        ensure!((0.0..=1.0).contains(&gamma), "config key `gamma` must be between 0 and 1, not {gamma}");
        Ok(Self { config })
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let (anchors, actions) = (rows.anchors.context("the host gave no anchors")?, rows.action()?);
        let returns = step_returns(rows, self.config.gamma)?;
        let mut advantages = episode_advantages(rows, self.config.norm, Weighting::Row);
        let mut weights = Vec::new();
        for state in group_by((0..rows.len()).map(|row| (rows.group[row], anchors.of(row)))) {
            let all: Vec<f64> = state.iter().map(|&row| returns[row]).collect();
            let Some(summary) = Summary::of(&all) else { continue };
            let by_action: Vec<Vec<f64>> = group_by(state.iter().map(|&row| actions.of(row)))
                .into_iter()
                .map(|members| members.into_iter().map(|member| all[member]).collect())
                .collect();
            let explained = explained(&all, &by_action);
            weights.extend(explained);
            for (&row, &value) in state.iter().zip(&all) {
                advantages[row] += explained.unwrap_or(1.0) * summary.advantage(value, self.config.norm);
            }
        }
        out.metric("weighed_states", weights.len() as f64);
        out.metric("weight_mean", weights.iter().sum::<f64>() / weights.len() as f64);
        out.broadcast(rows, &advantages);
        Ok(())
    }
}

impl Columns for AdaStep {
    fn columns(&self) -> Vec<Asked> {
        vec![Column::Action.into()]
    }
}

/// The share of the returns' variance that the actions explain; none where it cannot be estimated.
fn explained(returns: &[f64], by_action: &[Vec<f64>]) -> Option<f64> {
    let total = variance(returns);
    if by_action.len() < 2 || by_action.iter().any(|returns| returns.len() < 2) || total == 0.0 {
        return None;
    }
    let within: f64 = by_action.iter().map(|own| own.len() as f64 / returns.len() as f64 * variance(own)).sum();
    Some((1.0 - within / total).clamp(0.0, 1.0))
}

/// The population variance: 0 for equal values, whatever rounding does to their mean.
fn variance(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    Summary::of(values).map_or(0.0, |summary| summary.std * summary.std * (n - 1.0) / n)
}

nestor_plugin::export! { estimators: [AdaStep + columns] }

#[cfg(test)]
mod tests;
