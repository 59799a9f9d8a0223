//! HGPO (arXiv:2602.22817, ICLR 2026): a step's return is compared with those of the steps that share its state, of those that
//! also share the state before it, and so on,
//!
//! ```text
//! A_i = sum_k w_k a_k                                w_k = (k + 1)^alpha / (sum of these over i's items + 1e-6)
//! a_k = (R_i - mean_C R) / (std_C R + 1e-6)          C: the rows of i's group with i's last k states, k = 1 to history + 1
//! ```
//!
//! R is GiGPO's step return less the step's own penalty, std has n (not n - 1), and `norm: none` omits the division. A step
//! that is alone in C has no item k. `base_group` adds GRPO's episode advantage as item 0; without it no term compares
//! episodes. Items of 0 are left out, and so are their weights.
//!
//! Deviations from verl-agent's recipe/hgpo: an item counts as 0 where C is constant or |R_i - mean| < 1e-6 max_C |R|,
//! because there rounding decides: the rule is the same at every scale of rewards. Its key `weight_type`, which nothing reads, is absent.

#![forbid(unsafe_code)]

mod config;

use anyhow::Result;
use nestor_plugin::anchor::anchor_group;
use nestor_plugin::returns::step_returns;
use nestor_plugin::stats::{EPSILON, Spread, Summary, episode_advantages, group_by};
use nestor_plugin::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores};

use self::config::Config;

pub struct Hgpo(Config);

impl Estimator for Hgpo {
    const ID: &'static str = "hgpo";
    const DOC: &'static str = "HGPO: step returns compared in groups of equal histories of states";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self(config))
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.weighted_sum::<Self>(rows, &self.parts(rows)?, &[1.0, 1.0])
    }
}

impl Parts for Hgpo {
    const NAMES: &'static [&'static str] = &["episode_advantage", "history_advantage", "step_return", "anchor_group"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let Config { norm, gamma, history, alpha, base_group, weighting, anchor, similarity } = self.0;
        let keys = anchor.read(rows)?;
        let states = keys.states(rows, similarity)?;
        let (returns, previous) = (step_returns(rows, gamma)?, keys.order.previous());
        let mut episodes = if base_group { episode_advantages(rows, norm, weighting) } else { vec![0.0; rows.len()] };
        episodes.iter_mut().filter(|item| item.abs() <= 1e-9).for_each(|item| *item = 0.0);
        // The sum of each row's weights, and of its weighted items from k = 1 on.
        let mut weights: Vec<f64> = episodes.iter().map(|item| f64::from(u8::from(*item != 0.0))).collect();
        let mut histories = vec![0.0; rows.len()];
        let last_states = |row: usize, k: u32| {
            let earlier = std::iter::successors(Some(row), |&row| previous[row]).map(|row| states[row]);
            let last: Vec<usize> = earlier.take(k as usize).collect();
            (last.len() == k as usize).then_some((row, last))
        };
        for k in 1..=history + 1 {
            let weight = f64::from(k + 1).powf(alpha);
            let known: Vec<(usize, Vec<usize>)> = (0..rows.len()).filter_map(|row| last_states(row, k)).collect();
            for cluster in group_by(known.iter().map(|(_, last)| last)).iter().filter(|cluster| cluster.len() > 1) {
                let members = || cluster.iter().map(|&member| known[member].0);
                let values: Vec<f64> = members().map(|row| returns[row]).collect();
                let Some(summary) = Summary::of(&values) else { continue };
                let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
                let least = if summary.std == 0.0 { f64::INFINITY } else { 1e-6 * largest };
                for row in members().filter(|&row| (returns[row] - summary.mean).abs() >= least) {
                    weights[row] += weight;
                    histories[row] += weight * summary.with(Spread::Population).advantage(returns[row], norm);
                }
            }
        }
        for (row, weights) in weights.into_iter().enumerate() {
            episodes[row] /= weights + EPSILON;
            histories[row] /= weights + EPSILON;
        }
        Ok(vec![episodes, histories, returns, anchor_group(&states)])
    }
}

impl Columns for Hgpo {
    fn columns(&self) -> Vec<Asked> {
        self.0.anchor.columns()
    }
}

nestor_plugin::export! { estimators: [Hgpo + parts + columns] }

#[cfg(test)]
mod tests;
