//! PPO's clipped ratio per token (arXiv:1707.06347), with the dual clip (arXiv:1912.09729) and unequal bounds (DAPO's
//! clip-higher, arXiv:2503.14476). With x the policy's log-prob of a token, o the old one, A the advantage:
//!
//! ```text
//! r = exp(x - o)
//! max(-A r, -A clip(r, 1 - low, 1 + high)), and for negative A at most -A c
//! ```

use tch::Tensor;

use super::{LossInputs, TokenLoss};
use crate::recipe::Update;

pub fn loss(inputs: &LossInputs, update: &Update) -> TokenLoss {
    let ratio = (inputs.logprobs - inputs.old_logprobs).exp();
    let (larger, clipped) = bound(&ratio, inputs, update);
    let negative = inputs.advantages.lt(0.0);
    let limit = -inputs.advantages * update.dual_clip;
    let dual_clipped = larger.gt_tensor(&limit).logical_and(&negative);
    TokenLoss {
        loss: larger.minimum(&limit).where_self(&negative, &larger),
        metrics: vec![("policy/clip_fraction".into(), clipped), ("policy/dual_clip_fraction".into(), dual_clipped)],
    }
}

/// `max(-A r, -A clip(r))`, and the tokens whose clipped term is the larger.
pub fn bound(ratio: &Tensor, inputs: &LossInputs, update: &Update) -> (Tensor, Tensor) {
    let free = -inputs.advantages * ratio;
    let bound = -inputs.advantages * ratio.clamp(1.0 - update.clip_low, 1.0 + update.clip_high);
    (free.maximum(&bound), bound.gt_tensor(&free))
}
