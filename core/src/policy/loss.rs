//! Policy losses on response tokens, as vectors (R): streams in, one loss and its sums out.
//!
//! Every loss is a weighted sum of token losses, so that micro-batches and ranks simply add up; the weights carry the
//! aggregation (token-mean: one over the response tokens of the global mini-batch).

use tch::{Kind, Tensor};

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
    /// Advantages.
    pub advantages: &'a Tensor,
    /// Log-probs under the frozen reference, where there is a KL loss.
    pub ref_logprobs: Option<&'a Tensor>,
    /// Share of each token in the loss.
    pub weights: &'a Tensor,
}

/// A loss and the sums its metrics are made of.
#[derive(Debug)]
pub struct LossOutputs {
    /// The scalar to differentiate.
    pub loss: Tensor,
    /// Sums over tokens, weighted like the loss.
    pub sums: LossSums,
}

/// Sums over response tokens, each weighted like the loss, so that they add up over micro-batches to means.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSums {
    /// Clipped policy loss.
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

impl std::ops::AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        self.policy += other.policy;
        self.kl += other.kl;
        self.entropy += other.entropy;
        self.clip_fraction += other.clip_fraction;
        self.dual_clip_fraction += other.dual_clip_fraction;
        self.approx_kl += other.approx_kl;
    }
}

impl std::ops::Mul<f64> for LossSums {
    type Output = Self;
    fn mul(self, by: f64) -> Self {
        Self {
            policy: self.policy * by,
            kl: self.kl * by,
            entropy: self.entropy * by,
            clip_fraction: self.clip_fraction * by,
            dual_clip_fraction: self.dual_clip_fraction * by,
            approx_kl: self.approx_kl * by,
        }
    }
}

/// The clipped surrogate per token (PPO, Schulman et al. 2017) with dual clip (Ye et al. 2020):
/// `max(-A r, -A clip(r, 1 - low, 1 + high))`, and for negative A at most `-A c`.
struct Surrogate {
    loss: Tensor,
    clipped: Tensor,
    dual_clipped: Tensor,
}

fn surrogate(inputs: &LossInputs, clip: &Update) -> Surrogate {
    let ratio = (inputs.logprobs - inputs.old_logprobs).exp();
    let minus_advantages = -inputs.advantages;
    let free = &minus_advantages * &ratio;
    let bound = &minus_advantages * ratio.clamp(1.0 - clip.clip_low, 1.0 + clip.clip_high);
    let larger = free.maximum(&bound);
    let negative = inputs.advantages.lt(0.0);
    let limit = &minus_advantages * clip.dual_clip;
    Surrogate {
        loss: larger.minimum(&limit).where_self(&negative, &larger),
        clipped: bound.gt_tensor(&free),
        dual_clipped: larger.gt_tensor(&limit).logical_and(&negative),
    }
}

/// KL estimates of log-probs x under the policy and y under the reference (Schulman, "Approximating KL divergence").
pub fn kl(kind: KlKind, x: &Tensor, y: &Tensor) -> Tensor {
    match kind {
        KlKind::K1 => x - y,
        KlKind::K2 => (x - y).square() * 0.5,
        KlKind::K3 => {
            let log_ratio = y - x;
            (log_ratio.exp() - &log_ratio - 1.0).clamp(-10.0, 10.0)
        }
    }
}

/// Clipped policy loss, minus the entropy bonus, plus the KL loss.
pub fn policy_loss(inputs: &LossInputs, options: &Update) -> LossOutputs {
    let surrogate = surrogate(inputs, options);
    let sum = |x: &Tensor| (x * inputs.weights).sum(Kind::Float);
    let policy = sum(&surrogate.loss);
    let entropy = sum(inputs.entropy);
    let mut loss = &policy - &entropy * options.entropy;
    let mut kl_sum = None;
    if let (Some(options), Some(reference)) = (&options.kl, inputs.ref_logprobs) {
        let kl = sum(&kl(options.kind, inputs.logprobs, reference));
        loss = &loss + &kl * options.coef;
        kl_sum = Some(kl);
    }
    let value = |x: &Tensor| x.detach().double_value(&[]);
    let share = |x: &Tensor| value(&sum(&x.to_kind(Kind::Float)));
    let sums = LossSums {
        policy: value(&policy),
        kl: kl_sum.as_ref().map_or(0.0, value),
        entropy: value(&entropy),
        clip_fraction: share(&surrogate.clipped),
        dual_clip_fraction: share(&surrogate.dual_clipped),
        approx_kl: value(&sum(&(inputs.old_logprobs - inputs.logprobs))),
    };
    LossOutputs { loss, sums }
}
