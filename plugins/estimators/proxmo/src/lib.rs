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

mod config;
mod modulation;
mod similar;

use anyhow::Result;
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{Norm, Spread, episode_advantages, group_advantages, group_by};
use nestor_plugin::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores, Success};

use self::config::{Config, Rate};
use self::modulation::modulation;

pub struct Proxmo(Config);

impl Estimator for Proxmo {
    const ID: &'static str = "proxmo";
    const DOC: &'static str =
        "ProxMO: step returns against a softmax of similar states, episodes weighed by success rates";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self(config))
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.weighted_sum::<Self>(rows, &self.parts(rows)?, &[1.0, self.0.step_weight])
    }
}

impl Parts for Proxmo {
    const NAMES: &'static [&'static str] = &["episode_advantage", "step_advantage", "episode_weight", "step_return"];

    /// `episode_advantage` is m AE, and `episode_weight` is m.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let Config { soft, weighting, gamma, anchor, similarity, .. } = self.0;
        let norm = if soft { Norm::None } else { self.0.norm };
        let (keys, returns) = (anchor.read(rows)?, step_returns(rows, gamma)?);
        let steps = if soft {
            similar::against_similar(rows, &keys, &returns, &self.0)
        } else {
            group_advantages(&returns, &group_by(keys.states(rows, similarity)?), norm, Spread::Sample)
        };
        let (mut episodes, weights) = (episode_advantages(rows, norm, weighting), modulation(rows, &self.0)?);
        episodes.iter_mut().zip(&weights).for_each(|(advantage, weight)| *advantage *= weight);
        Ok(vec![episodes, steps, weights, returns])
    }
}

impl Columns for Proxmo {
    fn columns(&self) -> Vec<Asked> {
        let flag = self.0.modulation && self.0.rate == Rate::Flag;
        [self.0.anchor.columns(), if flag { Success::Flag.columns() } else { vec![] }].concat()
    }
}

nestor_plugin::export! { estimators: [Proxmo + parts + columns] }

#[cfg(test)]
mod tests;
