//! Policy-gradient losses per response token, (R) each: what is minimised before aggregation, KL and entropy.
//!
//! With x the policy's log-prob of a token, o the old one, A the advantage:
//!
//! ```text
//! clip       r = exp(x - o); max(-A r, -A clip(r, 1 - low, 1 + high)), and for negative A at most -A c
//!            (PPO, arXiv:1707.06347; dual clip, arXiv:1912.09729; unequal bounds: DAPO's clip-higher, arXiv:2503.14476)
//! gspo       r = exp(mean over the response of x - o), differentiated through every token; no dual clip
//!            (GSPO, arXiv:2507.18071, its token form)
//! ```
//!
//! Truncated importance weights (`importance_cap` C) make up for an engine whose probabilities q differ from the
//! update's own. Where old log-probs are recomputed the loss is multiplied by min(exp(o) / q, C), which is not
//! differentiated. Where they are the engine's own (o = log q) the weight takes the place of the clipped ratio: the loss is
//! -A min(p / q, C) exp(x - log p), p being the policy's probability, not differentiated.

use tch::{Kind, Tensor};

use super::loss::LossInputs;
use crate::recipe::{OldLogprobs, PolicyLoss, Update};

/// Largest log-ratio that GSPO takes the exponential of.
const MAX_LOG_RATIO: f64 = 10.0;

/// Token losses and where they are bounded.
#[derive(Debug)]
pub struct Surrogate {
    /// The loss of each token.
    pub loss: Tensor,
    /// Where the clipped term is the larger, or the weight is truncated.
    pub clipped: Tensor,
    /// Where the dual clip bounds the loss.
    pub dual_clipped: Tensor,
}

/// The loss that the recipe names.
pub fn surrogate(inputs: &LossInputs, update: &Update) -> Surrogate {
    match (update.loss, update.importance_cap, update.old_logprobs) {
        (PolicyLoss::Gspo, ..) => gspo(inputs, update),
        (PolicyLoss::Clip, None, _) => clip(inputs, update),
        (PolicyLoss::Clip, Some(cap), OldLogprobs::Rollout) => truncated(inputs, cap),
        (PolicyLoss::Clip, Some(cap), OldLogprobs::Recompute) => {
            let weight = (inputs.old_logprobs - inputs.behaviour).exp().clamp_max(cap);
            let clipped = clip(inputs, update);
            Surrogate { loss: clipped.loss * weight, ..clipped }
        }
    }
}

fn clip(inputs: &LossInputs, update: &Update) -> Surrogate {
    let ratio = (inputs.logprobs - inputs.old_logprobs).exp();
    let (larger, clipped) = bound(&ratio, inputs, update);
    let negative = inputs.advantages.lt(0.0);
    let limit = -inputs.advantages * update.dual_clip;
    Surrogate {
        loss: larger.minimum(&limit).where_self(&negative, &larger),
        clipped,
        dual_clipped: larger.gt_tensor(&limit).logical_and(&negative),
    }
}

fn gspo(inputs: &LossInputs, update: &Update) -> Surrogate {
    let log_ratio = (inputs.logprobs - inputs.old_logprobs).detach();
    let responses = inputs.responses;
    let count = responses.max().int64_value(&[]) + 1;
    let sum = |x: &Tensor| Tensor::zeros([count], (Kind::Float, x.device())).index_add(0, responses, x);
    let mean = (sum(&log_ratio) / sum(&log_ratio.ones_like())).index_select(0, responses);
    let ratio = (inputs.logprobs - inputs.logprobs.detach() + mean).clamp_max(MAX_LOG_RATIO).exp();
    let (loss, clipped) = bound(&ratio, inputs, update);
    Surrogate { loss, dual_clipped: clipped.zeros_like(), clipped }
}

fn truncated(inputs: &LossInputs, cap: f64) -> Surrogate {
    let now = inputs.logprobs.detach();
    let weight = (&now - inputs.behaviour).exp();
    let clipped = weight.gt(cap);
    let loss = -inputs.advantages * weight.clamp_max(cap) * (inputs.logprobs - now).exp();
    Surrogate { loss, dual_clipped: clipped.zeros_like(), clipped }
}

/// `max(-A r, -A clip(r))`, and where the clipped term is the larger.
fn bound(ratio: &Tensor, inputs: &LossInputs, update: &Update) -> (Tensor, Tensor) {
    let free = -inputs.advantages * ratio;
    let bound = -inputs.advantages * ratio.clamp(1.0 - update.clip_low, 1.0 + update.clip_high);
    (free.maximum(&bound), bound.gt_tensor(&free))
}
