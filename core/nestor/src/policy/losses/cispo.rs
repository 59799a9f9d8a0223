//! CISPO (MiniMax-M1, arXiv:2506.13585): the ratio is a clipped weight, so that every token has a gradient, also those that
//! PPO's clip leaves out. With x the policy's log-prob of a token, o the old one, A the advantage:
//!
//! ```text
//! r = exp(x - o), not differentiated
//! -A clip(r, 1 - low, 1 + high) x
//! ```

use super::{LossInputs, TokenLoss};
use crate::recipe::Update;

pub fn loss(inputs: &LossInputs, update: &Update) -> TokenLoss {
    let ratio = (inputs.logprobs.detach() - inputs.old_logprobs).exp();
    let weight = ratio.clamp(1.0 - update.clip_low, 1.0 + update.clip_high);
    let clipped = weight.ne_tensor(&ratio);
    TokenLoss {
        loss: -inputs.advantages * weight * inputs.logprobs,
        metrics: vec![("policy/clip_fraction".into(), clipped)],
    }
}
