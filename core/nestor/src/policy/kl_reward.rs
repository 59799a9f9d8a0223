//! KL in the reward: each token's reward is reduced by a KL penalty against the reference before advantages are estimated
//! (Ziegler et al. 2019, arXiv:1909.08593, section 2.2).

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::losses::kl;
use crate::data::Batch;
use crate::recipe::KlInReward;

/// The coefficient of the penalty, which may adapt to reach a target KL. Part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlCoefficient(pub f64);

impl KlCoefficient {
    /// Adapts the coefficient after an iteration of `steps` rows whose mean KL was `kl`.
    pub fn update(&mut self, section: &KlInReward, kl: f64, steps: usize) {
        if let Some(adaptive) = &section.adaptive {
            let error = (kl / adaptive.target - 1.0).clamp(-0.2, 0.2);
            self.0 *= 1.0 + error * steps as f64 / adaptive.horizon as f64;
        }
    }
}

/// Subtracts `coefficient` times the KL estimate of old log-probs against the reference's from the tokens' rewards. Returns
/// the estimate's mean over rows of the means over their tokens.
pub fn subtract_kl(batch: &mut Batch, section: &KlInReward, coefficient: KlCoefficient) -> f64 {
    let Some(reference) = &batch.rows.ref_logprobs else { return 0.0 };
    let (x, y) = (Tensor::from_slice(batch.old_logprobs()), Tensor::from_slice(reference));
    let mut each = vec![0f32; reference.len()];
    kl(section.kind, &x, &y).copy_data(&mut each, reference.len());
    let rows = &mut batch.rows;
    for (reward, kl) in rows.token_rewards.iter_mut().zip(&each) {
        *reward -= coefficient.0 * f64::from(*kl);
    }
    let mean = |row: u32| {
        let tokens = &each[rows.response(row)];
        tokens.iter().map(|&kl| f64::from(kl)).sum::<f64>() / tokens.len().max(1) as f64
    };
    (0..rows.len() as u32).map(mean).sum::<f64>() / rows.len().max(1) as f64
}
