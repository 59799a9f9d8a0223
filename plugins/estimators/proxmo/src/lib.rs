//! ProxMO (arXiv:2602.19225): a step's return is compared with those of similar states, and episodes count by the success rate,
//!
//! ```text
//! A_i = m_i AE_i + step_weight * AS_i
//! AS_i = R_i - sum_j w_ij R_j          j: the rows of i's group; w_i: softmax over j of cos(i, j) / temperature
//! m_i  = 1 + beta (sigmoid((1 - p)^alpha) - 0.5) where i is solved, else 1 + beta (sigmoid(-p^alpha) - 0.5)
//! ```
//!
//! cos compares tf-idf vectors of the anchors, as scikit-learn makes them from the whole batch; without a word AS is 0. R is
//! GiGPO's step return less the step's own penalty. AE is GRPO's without standard deviations. p is the success rate of the
//! group's rows; in a group of one row it is 0. `soft: false` takes GiGPO's AS and `norm`; `modulation: false` takes m = 1.
//!
//! Deviations from proxmo/core_proxmo.py: p and the solved rows are the environment's flag. That code takes the mean of the
//! scores, cut to [0, 1], and scores above 0.5 (`rate: score`): with rewards of 10 its p is 1 from a rate of 10 % on.

#![forbid(unsafe_code)]

mod modulation;
mod similar;

use anyhow::{Result, ensure};
use nestor_plugin::anchor::{Anchor, check_similarity};
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Norm, Spread, Weighting, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Rows, Success, WeightedParts, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::modulation::modulation;

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Proxmo {
    /// Compare a step with all steps of its group by the similarity of their anchors, or with those of its state.
    soft: bool,
    /// Divide by standard deviations, on both levels, or not; only without `soft`.
    norm: Norm,
    /// The scores that the episode part's mean counts.
    weighting: Weighting,
    /// Discount of the step returns.
    gamma: f64,
    /// Weight of the step level.
    step_weight: f64,
    /// Divisor of the cosines before the softmax.
    temperature: f64,
    /// Terms of the tf-idf vectors.
    max_terms: usize,
    /// Weight episodes by the success rate.
    modulation: bool,
    /// Power of the success rate.
    alpha: f64,
    /// Strength of the weight; published: 0.05 / (sigmoid(1) - 0.5).
    beta: f64,
    /// The success of a row and the success rate of a group.
    rate: Rate,
    /// Definition of a state.
    anchor: Anchor,
    /// Without `soft`: anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    similarity: Option<f64>,
}

/// Source of a row's success and of a group's success rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// The environment's flag.
    #[default]
    Flag,
    /// The scores of the rows, cut to between 0 and 1 on average; those above 0.5 are solved.
    Score,
}

impl Default for Proxmo {
    fn default() -> Self {
        let (norm, weighting, rate, anchor, similarity) = Default::default();
        Self {
            soft: true,
            norm,
            weighting,
            gamma: 0.95,
            step_weight: 1.0,
            temperature: 0.1,
            max_terms: 1024,
            modulation: true,
            alpha: 4.0,
            beta: 0.216_395_323_640_791_23,
            rate,
            anchor,
            similarity,
        }
    }
}

impl WeightedParts for Proxmo {
    const ID: &'static str = "proxmo";
    const DOC: &'static str =
        "ProxMO: step returns against a softmax of similar states, episodes weighed by success rates";
    const PARTS: &'static [&'static str] = &["episode_advantage", "step_advantage", "episode_weight", "step_return"];

    fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        ensure!(self.temperature > 0.0, "config key `temperature` must be above 0, not {}", self.temperature);
        check_similarity(self.similarity)
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(self.anchor)
    }

    fn asked(&self) -> Vec<Asked> {
        let flag = self.modulation && self.rate == Rate::Flag;
        if flag { Success::Flag.columns() } else { vec![] }
    }

    fn weights(&self) -> Vec<f64> {
        vec![1.0, self.step_weight]
    }

    /// `episode_advantage` is m AE, and `episode_weight` is m.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let Self { soft, weighting, gamma, anchor, similarity, .. } = *self;
        let norm = if soft { Norm::None } else { self.norm };
        let (keys, returns) = (anchor.read(rows)?, step_returns(rows, gamma)?);
        let steps = if soft {
            similar::against_similar(rows, &keys, &returns, self)
        } else {
            group_advantages(&returns, &group_by(keys.states(rows, similarity)?), norm, Spread::Sample)
        };
        let (mut episodes, weights) = (episode_advantages(rows, norm, weighting), modulation(rows, self)?);
        episodes.iter_mut().zip(&weights).for_each(|(advantage, weight)| *advantage *= weight);
        Ok(vec![episodes, steps, weights, returns])
    }
}

nestor_plugin::export! { estimators: [Proxmo + parts + columns] }

#[cfg(test)]
mod tests;
