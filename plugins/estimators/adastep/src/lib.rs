//! AdaStep (arXiv:2610.03223): GiGPO whose step-level advantage counts as much as the actions of a state explain its returns,
//!
//! ```text
//! A_i = AE_i + w(C) AS_i                               C: the rows of i's group in i's state
//! w   = 1 - sum_a (n_a / n) Var_a(R) / Var(R)          a: the actions taken in C; variances with n, w in [0, 1]
//! ```
//!
//! AE and AS are GiGPO's, and R is its step return less the step's own penalty. w is 1 if C has one action, an action taken once,
//! or equal returns. Actions are compared as the environment read them, also those of invalid responses.
//!
//! The authors released no code. The weight is that of a third party (auto-research), whose own step level differs; AE and
//! AS are verl-agent's. The notes leave open whether w takes penalised returns, as it does here.

#![forbid(unsafe_code)]

mod config;

use anyhow::Result;
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Spread, Summary, add, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Column, Columns, Estimator, Needs, Rows, Scores};

use self::config::Config;

pub struct AdaStep(Config);

impl Estimator for AdaStep {
    const ID: &'static str = "adastep";
    const DOC: &'static str = "AdaStep: GiGPO with the step level weighed by what actions explain";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self(config))
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let (actions, returns) = (rows.action()?, step_returns(rows, self.0.gamma)?);
        let groups = group_by(self.0.anchor.read(rows)?.states(rows, self.0.similarity)?);
        let mut steps = group_advantages(&returns, &groups, self.0.norm, Spread::Sample);
        let mut weights = Vec::new();
        for state in &groups {
            let returns_of = |rows: &[usize]| rows.iter().map(|&row| returns[row]).collect::<Vec<f64>>();
            let by_action: Vec<Vec<f64>> = group_by(state.iter().map(|&row| actions.of(row)))
                .into_iter()
                .map(|members| returns_of(&members.iter().map(|&member| state[member]).collect::<Vec<_>>()))
                .collect();
            let Some(weight) = explained(&returns_of(state), &by_action) else { continue };
            state.iter().for_each(|&row| steps[row] *= weight);
            weights.push(weight);
        }
        out.metric("weighed_states", weights.len() as f64);
        out.metric("weight_mean", weights.iter().sum::<f64>() / weights.len() as f64);
        let mut advantages = episode_advantages(rows, self.0.norm, self.0.weighting);
        add(&mut advantages, self.0.step_weight, &steps);
        out.broadcast(rows, &advantages);
        Ok(())
    }
}

/// The share of the returns' variance that the actions explain; none where it cannot be estimated.
fn explained(returns: &[f64], by_action: &[Vec<f64>]) -> Option<f64> {
    let variance = |values: &[f64]| Summary::of(values).map_or(0.0, |summary| summary.variance());
    let total = variance(returns);
    if by_action.len() < 2 || by_action.iter().any(|returns| returns.len() < 2) || total == 0.0 {
        return None;
    }
    let within: f64 = by_action.iter().map(|own| own.len() as f64 / returns.len() as f64 * variance(own)).sum();
    Some((1.0 - within / total).clamp(0.0, 1.0))
}

impl Columns for AdaStep {
    fn columns(&self) -> Vec<Asked> {
        [vec![Column::Action.into()], self.0.anchor.columns()].concat()
    }
}

nestor_plugin::export! { estimators: [AdaStep + columns] }

#[cfg(test)]
mod tests;
