//! The clipped value loss of a critic (PPO, arXiv:1707.06347). With v the value, v_o the value before the update and R the
//! return that the estimator gave as target:
//!
//! ```text
//! max((v - R)^2, (clip(v, v_o - c, v_o + c) - R)^2)     without a factor 1/2, as the reference implementation has it
//! ```

use tch::{Kind, Tensor};

/// Inputs of the value loss, one entry per state, float32 (N).
#[derive(Debug)]
pub struct ValueInputs<'a> {
    /// The critic's values; differentiated.
    pub values: &'a Tensor,
    pub old_values: &'a Tensor,
    /// Targets.
    pub returns: &'a Tensor,
    /// Weight of each state in the loss.
    pub weights: &'a Tensor,
}

/// The scalar to differentiate, and the states (N) where the clipped term is the larger.
pub fn value_loss(inputs: &ValueInputs, clip: f64) -> (Tensor, Tensor) {
    let ValueInputs { values, old_values, returns, weights } = *inputs;
    let clipped = values.maximum(&(old_values - clip)).minimum(&(old_values + clip));
    let (free, bound) = ((values - returns).square(), (clipped - returns).square());
    ((free.maximum(&bound) * weights).sum(Kind::Double), bound.gt_tensor(&free))
}
