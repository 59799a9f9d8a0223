//! ReMax (Li et al. 2024, arXiv:2310.10505): the rewards that follow a token against the return of one greedy episode from the
//! same start,
//!
//! ```text
//! A_t = R_t - b_G                                   b_G: return of the greedy episode of the token's group G
//! R_t = r_t + R_t+1                                 over the row's own tokens
//! ```
//!
//! r are the row's token rewards: its episode's score on the last token, and KL in the reward on all. b is the sum of the
//! environment's rewards without penalties. The run plays the greedy episode in addition, from the group's task and seed, and does
//! not train on it. The baseline is fair only where the environment starts and answers alike for one seed.
//!
//! Deviation from verl-agent: its trainer loses the baseline before its use where there is an environment.

#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use nestor_plugin::stats::row_scores;
use nestor_plugin::{Asked, Column, Columns, Estimator, NoConfig, Parts, Rows, Scores};

pub struct Remax;

impl Estimator for Remax {
    const ID: &'static str = "remax";
    const DOC: &'static str = "ReMax: scores against the return of a greedy episode";
    type Config = NoConfig;

    fn open(_: NoConfig) -> Result<Self> {
        Ok(Self)
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.weighted_sum::<Self>(rows, &self.parts(rows)?, &[1.0])?;
        // A row's part is that of its first token. KL in the reward makes those of later tokens differ.
        for (row, baseline) in rows.greedy_return()?.iter().enumerate() {
            ensure!(baseline.is_finite(), "the group of row {row} has no greedy episode");
            let mut following = 0.0;
            for token in rows.tokens(row).rev() {
                following += rows.token_rewards[token];
                out.advantages[token] = (following - baseline) as f32;
                out.returns[token] = following as f32;
            }
        }
        Ok(())
    }
}

impl Columns for Remax {
    fn columns(&self) -> Vec<Asked> {
        vec![Column::GreedyReturn.into()]
    }
}

impl Parts for Remax {
    const NAMES: &'static [&'static str] = &["episode_advantage", "greedy_return"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let baselines = rows.greedy_return()?;
        let advantages = row_scores(rows).iter().zip(baselines).map(|(score, baseline)| score - baseline).collect();
        Ok(vec![advantages, baselines.to_vec()])
    }
}

nestor_plugin::export! { estimators: [Remax + parts + columns] }

#[cfg(test)]
mod tests;
