//! GiGPO (Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", arXiv:2505.10978): groups
//! inside groups. The episodes of one task are compared with each other, and so are the steps that they took in one
//! state,
//!
//! ```text
//! A_i  = AE_i + step_weight * AS_i
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
//! The equations are computed in
//!
//! - A: `Gigpo::advantages` below;
//! - AE: `episode_advantages` in the SDK (plugins/sdk/src/stats.rs), because GRPO shares it;
//! - AS: `Gigpo::steps` below, with the groups C from the SDK (plugins/sdk/src/anchor.rs);
//! - R: `step_returns` in the SDK;
//! - the division, or none: `Summary::advantage` in the SDK, on both levels.
//!
//! The default of `norm` is `none` here and `std` in grpo. Each is the default of the reference implementation: its
//! GiGPO mode is `mean_norm`, its GRPO divides as the GRPO paper does. The GiGPO paper allows both forms. Its published
//! scripts divide on ALFWorld and Search, and do not on WebShop.

#![forbid(unsafe_code)]

mod permuted;

use anyhow::{Result, ensure};
use nestor_plugin::anchor::{Anchor, check_similarity};
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Norm, Spread, Weighting, add, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores, check_between};
use schemars::JsonSchema;
use serde::Deserialize;

use self::permuted::Permuted;

pub struct Gigpo {
    config: Config,
}

/// The keys of `estimator.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// The published runs.
#[schemars(example = nestor_plugin::serde_json::json!({"norm": "std", "step_weight": 1.0, "gamma": 0.95}))]
pub struct Config {
    /// Divide by standard deviations, on both levels, or not.
    #[serde(default = "no_norm")]
    norm: Norm,
    /// The scores that a group's mean and standard deviation count.
    #[serde(default)]
    weighting: Weighting,
    /// Weight of the step-level advantage.
    #[serde(default = "one")]
    step_weight: f64,
    /// Discount of the step returns.
    #[serde(default = "default_gamma")]
    gamma: f64,
    /// Definition of a state.
    #[serde(default)]
    anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    #[serde(default)]
    similarity: Option<f64>,
}

fn no_norm() -> Norm {
    Norm::None
}

fn one() -> f64 {
    1.0
}

/// The value of all published GiGPO runs; the reference implementation's bare default is 1.
fn default_gamma() -> f64 {
    0.95
}

impl Estimator for Gigpo {
    const ID: &'static str = "gigpo";
    const DOC: &'static str = "GiGPO: an episode-level advantage plus a step-level one inside groups of equal states";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let Config { step_weight, gamma, similarity, .. } = config;
        check_between("gamma", gamma, 0.0..=1.0)?;
        ensure!(step_weight.is_finite(), "config key `step_weight` must be a finite number, not {step_weight}");
        check_similarity(similarity)?;
        Ok(Self { config })
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.broadcast(rows, &self.advantages(rows)?);
        Ok(())
    }
}

impl Columns for Gigpo {
    fn columns(&self) -> Vec<Asked> {
        self.config.anchor.columns()
    }
}

impl Parts for Gigpo {
    const NAMES: &'static [&'static str] = &["episode_advantage", "step_advantage", "step_return", "anchor_group"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let Steps { advantages, returns, state } = self.steps(rows)?;
        Ok(vec![self.episode_advantages(rows), advantages, returns, state])
    }
}

/// The step level of every row, `[B]` each.
struct Steps {
    /// AS.
    advantages: Vec<f64>,
    /// R.
    returns: Vec<f64>,
    /// Number of the state in the batch.
    state: Vec<f64>,
}

impl Gigpo {
    /// Computes A of every row.
    fn advantages(&self, rows: &Rows<'_>) -> Result<Vec<f64>> {
        let mut advantages = self.episode_advantages(rows);
        add(&mut advantages, self.config.step_weight, &self.steps(rows)?.advantages);
        Ok(advantages)
    }

    /// Computes AE of every row (Eq. 3).
    fn episode_advantages(&self, rows: &Rows<'_>) -> Vec<f64> {
        episode_advantages(rows, self.config.norm, self.config.weighting)
    }

    fn steps(&self, rows: &Rows<'_>) -> Result<Steps> {
        let states = self.config.anchor.read(rows)?.states(rows, self.config.similarity)?;
        let returns = step_returns(rows, self.config.gamma)?;
        let groups = group_by(&states);
        let advantages = group_advantages(&returns, &groups, self.config.norm, Spread::Sample);
        Ok(Steps { advantages, returns, state: states.into_iter().map(|state| state as f64).collect() })
    }
}

nestor_plugin::export! { estimators: [Gigpo + parts + columns, Permuted + columns] }

#[cfg(test)]
mod tests;
