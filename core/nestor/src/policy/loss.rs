//! The whole policy loss on response tokens, as vectors (R): streams in, one loss and its sums out.
//!
//! Every loss is a weighted sum of token losses, so that micro-batches and ranks simply add up; the weights carry the
//! aggregation.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::surrogate::surrogate;
use crate::recipe::{KlKind, Update};

/// What a loss may look at, one entry per response token, float32 (R).
#[derive(Debug)]
pub struct LossInputs<'a> {
    /// Log-probs under the policy; what is differentiated.
    pub logprobs: &'a Tensor,
    /// Entropy of the policy's distribution; differentiated too.
    pub entropy: &'a Tensor,
    /// Log-probs the ratio is taken against.
    pub old_logprobs: &'a Tensor,
    /// Log-probs under which the engine sampled.
    pub behaviour: &'a Tensor,
    /// Advantages.
    pub advantages: &'a Tensor,
    /// Log-probs under the frozen reference, where there is a KL loss.
    pub ref_logprobs: Option<&'a Tensor>,
    /// The response each token belongs to, from 0, int64.
    pub responses: &'a Tensor,
    /// Share of each token in the loss.
    pub weights: &'a Tensor,
    /// Share of a token in a mean over all response tokens.
    pub mean: f64,
}

/// A loss and the sums its metrics are made of.
#[derive(Debug)]
pub struct LossOutputs {
    /// The scalar to differentiate.
    pub loss: Tensor,
    /// What is told of it, in the order of [`LossSums`]: (7) float64 on the device, so that no one waits for it.
    pub sums: Tensor,
}

/// Sums over response tokens that add up over micro-batches: the two losses as aggregated, the others means over tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LossSums {
    /// What is differentiated: policy loss, KL and entropy with their weights.
    pub total: f64,
    /// The policy loss alone.
    pub policy: f64,
    /// KL estimate against the reference.
    pub kl: f64,
    /// Entropy.
    pub entropy: f64,
    /// Share of tokens where the clipped term is the larger.
    pub clip_fraction: f64,
    /// Share of tokens bound by the dual clip.
    pub dual_clip_fraction: f64,
    /// Mean of old minus new log-probs.
    pub approx_kl: f64,
}

impl LossSums {
    /// Reads what [`policy_loss`] left on the device.
    pub fn read(sums: &Tensor) -> Self {
        let mut numbers = [0.0; 7];
        sums.copy_data(&mut numbers, 7);
        Self::of(numbers)
    }

    /// Of the seven numbers that [`policy_loss`] gives.
    pub fn of(numbers: [f64; 7]) -> Self {
        let [total, policy, kl, entropy, clip_fraction, dual_clip_fraction, approx_kl] = numbers;
        Self { total, policy, kl, entropy, clip_fraction, dual_clip_fraction, approx_kl }
    }

    fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            total: f(self.total, other.total),
            policy: f(self.policy, other.policy),
            kl: f(self.kl, other.kl),
            entropy: f(self.entropy, other.entropy),
            clip_fraction: f(self.clip_fraction, other.clip_fraction),
            dual_clip_fraction: f(self.dual_clip_fraction, other.dual_clip_fraction),
            approx_kl: f(self.approx_kl, other.approx_kl),
        }
    }
}

impl std::ops::AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, |a, b| a + b);
    }
}

impl std::ops::Mul<f64> for LossSums {
    type Output = Self;
    fn mul(self, by: f64) -> Self {
        self.zip(self, |a, _| a * by)
    }
}

/// KL estimates of log-probs x under the policy and y under the reference (Schulman, "Approximating KL divergence").
pub fn kl(kind: KlKind, x: &Tensor, y: &Tensor) -> Tensor {
    match kind {
        KlKind::K1 => x - y,
        KlKind::Abs => (x - y).abs(),
        KlKind::K2 => (x - y).square() * 0.5,
        KlKind::K3 => {
            let log_ratio = y - x;
            (log_ratio.exp() - &log_ratio - 1.0).clamp(-10.0, 10.0)
        }
    }
}

/// The recipe's policy loss, minus the entropy bonus, plus the KL loss.
pub fn policy_loss(inputs: &LossInputs, options: &Update) -> LossOutputs {
    let surrogate = surrogate(inputs, options);
    // Terms of both signs nearly cancel: in float32 the order of summation would show.
    let weighted = |x: &Tensor| (x * inputs.weights).sum(Kind::Double);
    let mean = |x: &Tensor| x.detach().sum(Kind::Double) * inputs.mean;
    let policy = weighted(&surrogate.loss);
    let mut loss = &policy - weighted(inputs.entropy) * options.entropy;
    let mut kl_mean = policy.detach().zeros_like();
    if let (Some(options), Some(reference)) = (&options.kl, inputs.ref_logprobs) {
        let kl = kl(options.kind, inputs.logprobs, reference);
        kl_mean = mean(&kl);
        loss += weighted(&kl) * options.coef;
    }
    let sums = [
        loss.detach(),
        policy.detach(),
        kl_mean,
        mean(inputs.entropy),
        mean(&surrogate.clipped),
        mean(&surrogate.dual_clipped),
        mean(&(inputs.old_logprobs - inputs.logprobs)),
    ];
    let sums = Tensor::stack(&sums.map(|sum| sum.to_kind(Kind::Double)), 0);
    LossOutputs { loss, sums }
}
