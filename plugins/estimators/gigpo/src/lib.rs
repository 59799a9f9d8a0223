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

mod config;
mod permuted;

use anyhow::Result;
use nestor_plugin::anchor::anchor_group;
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Spread, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores};

use self::config::Config;
use self::permuted::Permuted;

pub struct Gigpo {
    config: Config,
}

impl Estimator for Gigpo {
    const ID: &'static str = "gigpo";
    const DOC: &'static str = "GiGPO: an episode-level advantage plus a step-level one inside groups of equal states";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self { config })
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.weighted_sum::<Self>(rows, &self.parts(rows)?, &self.config.weights())
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
        let Config { norm, weighting, gamma, anchor, similarity, .. } = self.config;
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
