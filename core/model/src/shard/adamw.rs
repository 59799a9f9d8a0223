//! AdamW: decoupled weight decay, and the bias correction of `torch.optim.AdamW`. With gradient g, moments m and v, step t:
//!
//! ```text
//! m ← β1 m + (1 - β1) g      v ← β2 v + (1 - β2) g²
//! w ← w - lr λ w - lr (m / (1 - β1ᵗ)) / (√(v / (1 - β2ᵗ)) + ε)
//! ```
//!
//! I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101.

use anyhow::Result;
use nestor_torch::AdamWState;

use super::layout::Layout;
use super::rule::{Step, UpdateRule};
use crate::recipe;

/// AdamW's settings.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
}

impl AdamW {
    /// Those of a recipe.
    pub fn of(optimizer: &recipe::Optimizer) -> Self {
        Self { betas: optimizer.betas, eps: optimizer.eps, weight_decay: optimizer.weight_decay }
    }

    /// The settings of one step at this learning rate.
    pub fn at(&self, lr: f64) -> nestor_torch::AdamW {
        let Self { betas: [beta1, beta2], eps, weight_decay } = *self;
        nestor_torch::AdamW { lr, beta1, beta2, weight_decay, eps }
    }

    /// The first and second moments of all parameters of a layout.
    pub fn moments(layout: &Layout) -> [(&'static str, Layout); 2] {
        [("exp_avg", layout.clone()), ("exp_avg_sq", layout.clone())]
    }
}

impl UpdateRule for AdamW {
    fn state(&self, unit: &Layout) -> Vec<(&'static str, Layout)> {
        Self::moments(unit).into()
    }

    fn state_in_words(&self) -> &'static str {
        "moments of AdamW"
    }

    fn step(&self, step: &Step) -> Result<()> {
        let &Step { params, grads, state, copies, divisor, steps, lr, .. } = step;
        let (exp_avgs, exp_avg_sqs) = (&state[0].shards, &state[1].shards);
        nestor_torch::adamw(&AdamWState { params, grads, exp_avgs, exp_avg_sqs, copies, divisor, steps }, &self.at(lr))
    }
}
