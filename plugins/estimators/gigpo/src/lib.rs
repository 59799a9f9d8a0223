//! GiGPO (Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", arXiv:2505.10978): groups
//! inside groups. The episodes of one task are compared with each other, and so are the steps that they took in one
//! state,
//!
//! ```text
//! A_i  = episode_weight * AE_i + step_weight * AS_i
//! AE_i = (S_i - mean_G S) / (std_G S + 1e-6)        G: the rows of i's group                    (Eq. 3)
//! AS_i = (R_i - mean_C R) / (std_C R + 1e-6)        C: the rows of G with i's anchor            (Eq. 6)
//! R_t  = r_t + gamma * R_t+1, then less the step's own penalty                                  (Eq. 5)
//! ```
//!
//! S_i is the sum of row i's token rewards, r the environment's reward, std has n - 1. `norm: none` omits both
//! divisions. `weighting` selects the scores in AE's mean and std: those of every step (the reference implementation)
//! or one per episode (Eq. 3). A state met once gives AS = 0, as does one with equal returns. Every response token of
//! the row gets A_i.
//!
//! The equations are computed in `Gigpo::parts` below, A in `Scores::weighted_sum` of the SDK. AE is `episode_advantages`
//! in the SDK (plugins/sdk/src/stats.rs), because GRPO shares it; the groups C are in plugins/sdk/src/anchor.rs, R is
//! `step_returns`, and the division, or none, is `Summary::advantage` on both levels.
//!
//! The default of `norm` is `none` here and `std` in grpo. Each is the default of the reference implementation: its
//! GiGPO mode is `mean_norm`, its GRPO divides as the GRPO paper does. The GiGPO paper allows both forms. Its published
//! scripts divide on ALFWorld and Search, and do not on WebShop.

#![forbid(unsafe_code)]

mod permuted;

use anyhow::{Result, ensure};
use nestor_plugin::anchor::{Anchor, anchor_group, check_similarity};
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Norm, Spread, Weighting, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Rows, WeightedParts, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::permuted::Permuted;

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
// The published runs.
#[schemars(example = nestor_plugin::serde_json::json!({"norm": "std", "step_weight": 1.0, "gamma": 0.95}))]
pub struct Gigpo {
    /// Divide by standard deviations, on both levels, or not.
    norm: Norm,
    /// The scores that a group's mean and standard deviation count.
    weighting: Weighting,
    /// Weight of the episode-level advantage; 0 leaves it out.
    episode_weight: f64,
    /// Weight of the step-level advantage; 0 leaves it out.
    step_weight: f64,
    /// Discount of the step returns.
    gamma: f64,
    /// Definition of a state.
    anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    similarity: Option<f64>,
}

impl Default for Gigpo {
    fn default() -> Self {
        let (weighting, anchor, similarity) = Default::default();
        // 0.95 is the discount of all published GiGPO runs; the reference implementation's bare default is 1.
        let (episode_weight, step_weight, gamma) = (1.0, 1.0, 0.95);
        Self { norm: Norm::None, weighting, episode_weight, step_weight, gamma, anchor, similarity }
    }
}

impl WeightedParts for Gigpo {
    const ID: &'static str = "gigpo";
    const DOC: &'static str = "GiGPO: an episode-level advantage plus a step-level one inside groups of equal states";
    const PARTS: &'static [&'static str] = &["episode_advantage", "step_advantage", "step_return", "anchor_group"];

    fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        for (key, weight) in ["episode_weight", "step_weight"].into_iter().zip(self.weights()) {
            ensure!(weight.is_finite(), "config key `{key}` must be a finite number, not {weight}");
        }
        check_similarity(self.similarity)
    }

    fn anchor(&self) -> Option<Anchor> {
        Some(self.anchor)
    }

    fn weights(&self) -> Vec<f64> {
        vec![self.episode_weight, self.step_weight]
    }

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let Self { norm, weighting, gamma, anchor, similarity, .. } = *self;
        let episodes = episode_advantages(rows, norm, weighting); // AE
        let states = anchor.read(rows)?.states(rows, similarity)?; // C
        let returns = step_returns(rows, gamma)?; // R
        let steps = group_advantages(&returns, &group_by(&states), norm, Spread::Sample); // AS
        Ok(vec![episodes, steps, returns, anchor_group(&states)])
    }
}

nestor_plugin::export! { estimators: [Gigpo + parts + columns, Permuted + parts + columns] }

#[cfg(test)]
mod tests;
