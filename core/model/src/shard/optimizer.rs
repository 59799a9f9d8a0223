//! Float32 master weights, gradient sums and an optimizer's state, one flat tensor per unit, and the global gradient norm. Each
//! rank steps its shards by an update rule.

use anyhow::Result;
use tch::{Kind, Tensor};

use super::layout::Layout;
use super::loss_scale::LossScale;
use super::offload::{host_zeros, step_by_unit};
use super::rule::{NamedState, Step, Stepping};
use super::units::Ranks;
use crate::ranks::Reduce;
use crate::recipe::Offload;

/// This rank's shards of a network's master weights, gradient sums and state of an update rule, all float32, one flat tensor
/// per unit. Those that [`Stepping::offload`] names rest in the host's memory, the others on the network's device.
#[derive(Debug)]
pub struct Optimizer {
    /// The trained weights; the network computes with copies (or with these, in float32).
    pub master_weights: Vec<Tensor>,
    /// Gradient sums of the current mini-batch.
    pub grads: Vec<Tensor>,
    /// Gradient sums to be treated as zero: the first gradient overwrites them.
    pub(super) stale: Vec<bool>,
    pub state: Vec<NamedState>,
    /// Number of optimizer steps.
    pub steps: u64,
    /// The gradient sums are multiples of the gradients by it, in float16.
    pub loss_scale: Option<LossScale>,
    pub stepping: Stepping,
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
    /// Starts with a state of zeros, from this rank's shards of the units. In float32 the master weights share storage with
    /// the network's own tensors, so that the network sees an optimizer step at once.
    pub fn new(
        stepping: Stepping,
        units: &[Layout],
        shards: &[Tensor],
        ranks: &Ranks,
        loss_scale: Option<LossScale>,
    ) -> Result<Self> {
        let Stepping { rule, offload } = &stepping;
        let master_weight = |shard: &Tensor| {
            let weight = shard.detach().to_kind(Kind::Float);
            if *offload != Offload::All {
                return Ok(weight);
            }
            let mut offloaded = host_zeros(weight.numel() as i64, weight.device())?;
            offloaded.copy_(&weight);
            Ok(offloaded)
        };
        let master_weights = shards.iter().map(master_weight).collect::<Result<Vec<_>>>()?;
        let zeros = |shard: &Tensor| Tensor::zeros(shard.size(), (Kind::Float, shard.device()));
        let grads: Vec<Tensor> = shards.iter().map(zeros).collect();
        let stale = vec![false; grads.len()];
        let mut state: Vec<NamedState> = Vec::new();
        for (unit, grad) in units.iter().zip(&grads) {
            for (number, (name, layout)) in rule.state(unit).into_iter().enumerate() {
                if number == state.len() {
                    state.push(NamedState { name, layouts: Vec::new(), shards: Vec::new() });
                }
                let held = layout.held_numel(ranks.comm.rank(), ranks.world());
                state[number].shards.push(match offload {
                    Offload::None => grad.new_zeros([held], (Kind::Float, grad.device())),
                    Offload::Moments | Offload::All => host_zeros(held, grad.device())?,
                });
                state[number].layouts.push(layout);
            }
        }
        Ok(Self { grads, stale, master_weights, state, steps: 0, loss_scale, stepping })
    }

    /// Sets the state and the number of steps to zero.
    pub fn reset(&mut self) {
        for tensor in self.state.iter_mut().flat_map(|state| &mut state.shards) {
            let _ = tensor.zero_();
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

    /// Clips by global norm and makes one step of the rule, which also writes the new weights to `copies`, one for each master
    /// weight, in their own type. A gradient that is not finite on any rank changes nothing.
    pub fn step(
        &mut self,
        units: &[Layout],
        (lr, grad_clip): (f64, f64),
        ranks: &Ranks,
        copies: Option<&[Tensor]>,
    ) -> Result<StepReport> {
        for (grad, stale) in self.grads.iter_mut().zip(&mut self.stale) {
            if std::mem::take(stale) {
                let _ = grad.zero_();
            }
        }
        let norms: Vec<Tensor> = self.grads.iter().map(|g| g.norm().to_kind(Kind::Double)).collect();
        let squares = Tensor::stack(&norms, 0).square().sum(Kind::Double);
        ranks.comm.all_reduce(&squares, Reduce::Sum)?;
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
        let Self { master_weights, grads, state, steps, stepping: Stepping { rule, offload }, .. } = self;
        let step = Step { units, ranks, lr, steps: *steps, divisor, params: master_weights, grads, state, copies };
        tch::no_grad(|| match offload {
            Offload::None => rule.step(&step),
            offload => step_by_unit(&**rule, *offload, &step),
        })?;
        Ok(StepReport { grad_norm, skipped: false, loss_scale })
    }
}
