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
mod explained;

use anyhow::{Result, bail};
use nestor_plugin::anchor::anchor_group;
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Spread, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Column, Columns, Estimator, Needs, Parts, Rows, Scores};

use self::config::Config;
use self::explained::explained;

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
        let parts = self.parts(rows)?;
        let [.., weight, _, state] = &parts[..] else { bail!("{} parts", parts.len()) };
        let states = group_by(state.iter().map(|state| state.to_bits()));
        let weights: Vec<f64> =
            states.iter().map(|state| weight[state[0]]).filter(|weight| weight.is_finite()).collect();
        out.metric("weighed_states", weights.len() as f64);
        out.metric("weight_mean", weights.iter().sum::<f64>() / weights.len() as f64);
        out.weighted_sum::<Self>(rows, &parts, &[1.0, self.0.step_weight])
    }
}

impl Parts for AdaStep {
    const NAMES: &'static [&'static str] =
        &["episode_advantage", "step_advantage", "action_weight", "step_return", "anchor_group"];

    /// `step_advantage` is w AS. `action_weight` is w; a row lacks it where w cannot be estimated.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let (actions, returns) = (rows.action()?, step_returns(rows, self.0.gamma)?);
        let states = self.0.anchor.read(rows)?.states(rows, self.0.similarity)?;
        let groups = group_by(&states);
        let mut steps = group_advantages(&returns, &groups, self.0.norm, Spread::Sample);
        let mut weights = vec![f64::NAN; rows.len()];
        for state in &groups {
            let returns_of = |rows: &[usize]| rows.iter().map(|&row| returns[row]).collect::<Vec<f64>>();
            let by_action: Vec<Vec<f64>> = group_by(state.iter().map(|&row| actions.of(row)))
                .into_iter()
                .map(|members| returns_of(&members.iter().map(|&member| state[member]).collect::<Vec<_>>()))
                .collect();
            let Some(weight) = explained(&returns_of(state), &by_action) else { continue };
            for &row in state {
                steps[row] *= weight;
                weights[row] = weight;
            }
        }
        let episodes = episode_advantages(rows, self.0.norm, self.0.weighting);
        Ok(vec![episodes, steps, weights, returns, anchor_group(&states)])
    }
}

impl Columns for AdaStep {
    fn columns(&self) -> Vec<Asked> {
        [vec![Column::Action.into()], self.0.anchor.columns()].concat()
    }
}

nestor_plugin::export! { estimators: [AdaStep + parts + columns] }

#[cfg(test)]
mod tests;
