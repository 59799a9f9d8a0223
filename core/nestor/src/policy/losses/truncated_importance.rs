//! Truncated importance weights (`update.importance_cap` C), which correct for an engine whose probabilities q differ from
//! the update's. With p the policy's probability of a token, x its log, o the old log-prob, A the advantage:
//!
//! ```text
//! old_logprobs: recompute    min(exp(o) / q, C) times the loss of `clip`
//! old_logprobs: rollout      -A min(p / q, C) exp(x - log p): here o = log q, and the weight replaces the clip
//! ```
//!
//! Neither the weight nor p is differentiated (Ionides, "Truncated Importance Sampling", 2008; IMPALA, arXiv:1802.01561).

use super::{LossInputs, TokenLoss, clip};
use crate::recipe::{OldLogprobs, Update};

pub fn loss(inputs: &LossInputs, update: &Update, cap: f64) -> TokenLoss {
    match update.old_logprobs {
        OldLogprobs::Recompute => {
            let weight = (inputs.old_logprobs - inputs.behaviour).exp().clamp_max(cap);
            let clipped = clip::loss(inputs, update);
            TokenLoss { loss: clipped.loss * weight, ..clipped }
        }
        OldLogprobs::Rollout => {
            let now = inputs.logprobs.detach();
            let weight = (&now - inputs.behaviour).exp();
            let truncated = weight.gt(cap);
            let loss = -inputs.advantages * weight.clamp_max(cap) * (inputs.logprobs - now).exp();
            TokenLoss { loss, metrics: vec![("policy/clip_fraction".into(), truncated)] }
        }
    }
}
