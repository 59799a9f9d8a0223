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

mod explained;

use anyhow::Result;
use nestor_plugin::anchor::{Anchor, anchor_group, check_similarity};
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Norm, Spread, Weighting, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Column, Rows, Scores, WeightedParts, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::explained::explained;

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdaStep {
    /// Divide by standard deviations, on both levels, or not.
    norm: Norm,
    /// The scores that the episode part's mean and standard deviation count.
    weighting: Weighting,
    /// Discount of the step returns.
    gamma: f64,
    /// Weight of the step level, before that of each state.
    step_weight: f64,
    /// Definition of a state.
    anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    similarity: Option<f64>,
}

impl Default for AdaStep {
    fn default() -> Self {
        let (norm, weighting, anchor, similarity) = Default::default();
        Self { norm, weighting, gamma: 0.95, step_weight: 1.0, anchor, similarity }
    }
}

impl WeightedParts for AdaStep {
    const ID: &'static str = "adastep";
    const DOC: &'static str = "AdaStep: GiGPO with the step level weighed by what actions explain";
    const PARTS: &'static [&'static str] =
        &["episode_advantage", "step_advantage", "action_weight", "step_return", "anchor_group"];

    fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        check_similarity(self.similarity)
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(self.anchor)
    }

    fn asked(&self) -> Vec<Asked> {
        vec![Column::Action.into()]
    }

    fn weights(&self) -> Vec<f64> {
        vec![1.0, self.step_weight]
    }

    /// `step_advantage` is w AS. `action_weight` is w; a row lacks it where w cannot be estimated.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let (actions, returns) = (rows.action()?, step_returns(rows, self.gamma)?);
        let states = self.anchor.read(rows)?.states(rows, self.similarity)?;
        let groups = group_by(&states);
        let mut steps = group_advantages(&returns, &groups, self.norm, Spread::Sample);
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
        let episodes = episode_advantages(rows, self.norm, self.weighting);
        Ok(vec![episodes, steps, weights, returns, anchor_group(&states)])
    }

    fn metrics(&self, parts: &[Vec<f64>], out: &mut Scores<'_>) {
        let [.., weight, _, state] = parts else { return };
        let states = group_by(state.iter().map(|state| state.to_bits()));
        let weights: Vec<f64> =
            states.iter().map(|state| weight[state[0]]).filter(|weight| weight.is_finite()).collect();
        out.metric("weighed_states", weights.len() as f64);
        out.metric("weight_mean", weights.iter().sum::<f64>() / weights.len() as f64);
    }
}

nestor_plugin::export! { estimators: [AdaStep + parts + columns] }

#[cfg(test)]
mod tests;
