//! GSPO's clipped ratio per response (arXiv:2507.18071, its token form). With x the policy's log-prob of a token, o the old
//! one, A the advantage:
//!
//! ```text
//! r = exp(mean over the response of x - o), differentiated through every token
//! max(-A r, -A clip(r, 1 - low, 1 + high))
//! ```

use tch::{Kind, Tensor};

use super::clip::bound;
use super::{LossInputs, TokenLoss};
use crate::recipe::Update;

/// Largest log-ratio that the exponential is taken of.
const MAX_LOG_RATIO: f64 = 10.0;

pub fn loss(inputs: &LossInputs, update: &Update) -> TokenLoss {
    let log_ratio = (inputs.logprobs - inputs.old_logprobs).detach();
    let responses = inputs.responses;
    let count = responses.max().int64_value(&[]) + 1;
    let sum = |x: &Tensor| Tensor::zeros([count], (Kind::Float, x.device())).index_add(0, responses, x);
    let mean = (sum(&log_ratio) / sum(&log_ratio.ones_like())).index_select(0, responses);
    let ratio = (inputs.logprobs - inputs.logprobs.detach() + mean).clamp_max(MAX_LOG_RATIO).exp();
    let (loss, clipped) = bound(&ratio, inputs, update);
    TokenLoss { loss, metrics: vec![("policy/clip_fraction".into(), clipped)] }
}
