//! On-policy distillation (GKD, arXiv:2306.13649, with lambda = 1 and the reverse KL; as a policy gradient by Thinking Machines,
//! 2025): each token that the policy sampled against the log-prob that a teacher gives it,
//!
//! ```text
//! A_k = kl_weight (log q_k - log p_k) + task_weight AE_i        k: a token of row i
//! ```
//!
//! q is the teacher, p the policy that sampled, AE GRPO's episode advantage. In expectation over samples of p the first term is the
//! gradient of -KL(p || q) token by token: a token's later consequences do not count (a discount of 0). With `task_weight` 0
//! rewards play no part.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use nestor_plugin::stats::{Norm, Weighting, episode_advantages};
use nestor_plugin::{Asked, Column, Columns, Estimator, Rows, Scores};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The estimator, which is its own config: the keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Opd {
    /// Weight of the teacher's part.
    kl_weight: f64,
    /// Weight of GRPO's episode advantage.
    task_weight: f64,
    /// Largest difference of the two log-probs that counts, in nats: one token of a distant policy would otherwise outweigh all others.
    clip: f64,
    /// Divide episode advantages by the group's standard deviation, or not.
    norm: Norm,
    /// The scores that the episode advantage's mean and standard deviation count.
    weighting: Weighting,
}

impl Default for Opd {
    fn default() -> Self {
        let (norm, weighting) = Default::default();
        Self { kl_weight: 1.0, task_weight: 0.0, clip: 10.0, norm, weighting }
    }
}

impl Estimator for Opd {
    const ID: &'static str = "opd";
    const DOC: &'static str = "On-policy distillation: each token against the log-prob that a teacher gives it";
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        let Self { kl_weight, task_weight, clip, .. } = config;
        ensure!(
            [kl_weight, task_weight].iter().all(|weight| weight.is_finite() && *weight >= 0.0),
            "config keys `kl_weight` and `task_weight` must be 0 or more, not {kl_weight} and {task_weight}"
        );
        ensure!(clip > 0.0, "config key `clip` must be greater than 0, not {clip}");
        Ok(config)
    }

    /// Metrics: `reverse_kl`, the mean of log p - log q over all tokens, in nats.
    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let teacher = rows.teacher_logprobs()?;
        let policy =
            rows.logprobs.context("the rows have no log-probs of the policy, which the teacher's are compared with")?;
        let episodes = episode_advantages(rows, self.norm, self.weighting);
        let mut sum = 0.0;
        for (row, episode) in episodes.into_iter().enumerate() {
            for token in rows.tokens(row) {
                let behind = f64::from(teacher[token]) - f64::from(policy[token]);
                sum += behind;
                let advantage = self.kl_weight * behind.clamp(-self.clip, self.clip) + self.task_weight * episode;
                out.advantages[token] = advantage as f32;
                out.returns[token] = advantage as f32;
            }
        }
        out.metric("reverse_kl", -sum / teacher.len().max(1) as f64);
        Ok(())
    }
}

impl Columns for Opd {
    fn columns(&self) -> Vec<Asked> {
        vec![Column::TeacherLogprobs.into()]
    }
}

nestor_plugin::export! { estimators: [Opd + columns] }

#[cfg(test)]
mod tests;
