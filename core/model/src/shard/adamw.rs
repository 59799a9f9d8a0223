//! AdamW on flat float32 master weights, one tensor per unit, and the global gradient norm. Each rank steps its shards.

use anyhow::Result;
pub use nestor_torch::AdamW;
use nestor_torch::AdamWState;
use tch::{Kind, Tensor};

use super::loss_scale::LossScale;
use crate::ranks::{Comm, Reduce};

/// This rank's shards of a network's master weights, gradient sums and moments, all float32, one flat tensor per unit.
#[derive(Debug)]
pub struct Optimizer {
    /// The trained weights; the network computes with copies (or with these, in float32).
    pub master_weights: Vec<Tensor>,
    /// Gradient sums of the current mini-batch.
    pub grads: Vec<Tensor>,
    /// Gradient sums to be treated as zero: the first gradient overwrites them.
    pub(super) stale: Vec<bool>,
    /// First moments.
    pub exp_avgs: Vec<Tensor>,
    /// Second moments.
    pub exp_avg_sqs: Vec<Tensor>,
    /// Number of optimizer steps.
    pub steps: u64,
    /// The gradient sums are multiples of the gradients by it, in float16.
    pub loss_scale: Option<LossScale>,
}

/// Outcome of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// The gradient was not finite, so the step changed nothing.
    pub skipped: bool,
    /// The loss scale of the gradient, in float16.
    pub loss_scale: Option<f64>,
}

impl Optimizer {
    /// Starts with zero moments. In float32 the master weights share storage with the network's own tensors, so that the
    /// network sees an optimizer step at once.
    pub fn new(flats: &[Tensor], loss_scale: Option<LossScale>) -> Self {
        let master_weights: Vec<_> = flats.iter().map(|f| f.detach().to_kind(Kind::Float)).collect();
        let zeros = || master_weights.iter().map(Tensor::zeros_like).collect::<Vec<_>>();
        let stale = vec![false; master_weights.len()];
        Self { grads: zeros(), stale, exp_avgs: zeros(), exp_avg_sqs: zeros(), master_weights, steps: 0, loss_scale }
    }

    /// Sets the moments and the number of steps to zero.
    pub fn reset(&mut self) {
        for moment in self.exp_avgs.iter_mut().chain(&mut self.exp_avg_sqs) {
            let _ = moment.zero_();
        }
        self.steps = 0;
    }

    /// Starts the sums of a new mini-batch.
    pub fn zero_grad(&mut self) {
        self.stale.fill(true);
    }

    /// Begins with this factor of the loss, in float16.
    pub fn begin_loss_scale(&mut self, factor: f64) {
        if let Some(scale) = &mut self.loss_scale {
            scale.factor = factor;
        }
    }

    /// The factor of the loss in a backward pass.
    pub fn loss_factor(&self) -> f64 {
        self.loss_scale.map_or(1.0, |scale| scale.factor)
    }

    /// Clips by global norm and makes one AdamW step, which also writes the new weights to `copies`, one for each master
    /// weight, in their own type. A gradient that is not finite on any rank changes nothing.
    pub fn step(
        &mut self,
        options: &AdamW,
        grad_clip: f64,
        comm: &dyn Comm,
        copies: Option<&[Tensor]>,
    ) -> Result<StepReport> {
        for (grad, stale) in self.grads.iter_mut().zip(&mut self.stale) {
            if std::mem::take(stale) {
                let _ = grad.zero_();
            }
        }
        let norms: Vec<Tensor> = self.grads.iter().map(|g| g.norm().to_kind(Kind::Double)).collect();
        let squares = Tensor::stack(&norms, 0).square().sum(Kind::Double);
        comm.all_reduce(&squares, Reduce::Sum)?;
        let (factor, loss_scale) = (self.loss_factor(), self.loss_scale.map(|scale| scale.factor));
        let grad_norm = squares.double_value(&[]).sqrt() / factor;
        if !grad_norm.is_finite() {
            self.loss_scale.as_mut().map(LossScale::overflowed);
            return Ok(StepReport { grad_norm, skipped: true, loss_scale });
        }
        self.loss_scale.as_mut().map(LossScale::succeeded);
        self.steps += 1;
        // The step itself clips and divides by the loss scale, which saves a pass over the gradients.
        let divisor = ((grad_norm + 1e-6) / grad_clip).max(1.0) * factor;
        tch::no_grad(|| {
            nestor_torch::adamw(
                &AdamWState {
                    params: &self.master_weights,
                    grads: &self.grads,
                    exp_avgs: &self.exp_avgs,
                    exp_avg_sqs: &self.exp_avg_sqs,
                    copies,
                    divisor,
                    steps: self.steps,
                },
                options,
            )
        })?;
        Ok(StepReport { grad_norm, skipped: false, loss_scale })
    }
}
