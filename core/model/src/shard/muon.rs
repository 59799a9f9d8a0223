//! Muon: momentum, made orthogonal, for the matrices of hidden layers; AdamW for all other parameters. With the gradient G of
//! a matrix W (rows outputs, cols inputs), momentum M and its decay μ:
//!
//! ```text
//! M ← μ M + (1 - μ) G      U = μ M + (1 - μ) G (Nesterov)
//! X₀ = U / ‖U‖             X ← a X + (b X Xᵀ + c (X Xᵀ)²) X, five times: about the nearest orthogonal matrix
//! W ← W - lr λ W - lr s X₅
//! ```
//!
//! The scale s is √max(1, rows / cols) in K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
//! and 0.2 √max(rows, cols) in J. Liu et al., "Muon is Scalable for LLM Training", arXiv 2502.16982. Published programs iterate
//! in bfloat16; here the products are float32 on every device.
//!
//! With several ranks the update U of a unit is all-gathered, each rank makes every W-th matrix orthogonal, and a reduce-scatter
//! returns to each rank its shard.

use anyhow::Result;
use nestor_torch::AdamWState;
use tch::Tensor;

use super::adamw::AdamW;
use super::layout::{Layout, OUTER, Param};
use super::rule::{Step, UpdateRule};
use crate::recipe::{self, MuonScale};

/// a, b and c: steep at zero, and singular values end within about 0.3 of 1.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const ITERATIONS: usize = 5;
/// Least norm that a matrix is divided by.
const EPS: f64 = 1e-7;

/// Muon's settings.
#[derive(Debug, Clone, Copy)]
pub struct Muon {
    /// Decay rate of the momentum, μ.
    pub momentum: f64,
    pub weight_decay: f64,
    pub scale: MuonScale,
    /// For all parameters but hidden matrices.
    pub rest: AdamW,
    /// Learning rate of the rest, as a multiple of Muon's.
    pub rest_lr_ratio: f64,
}

impl Muon {
    /// Those of a recipe.
    pub fn of(optimizer: &recipe::Optimizer) -> Self {
        let recipe::Muon { momentum, scale, adamw_lr_ratio } = optimizer.muon();
        let rest = AdamW::of(optimizer);
        Self { momentum, weight_decay: optimizer.weight_decay, scale, rest, rest_lr_ratio: adamw_lr_ratio }
    }

    /// Steps this rank's elements of the parameters that are no hidden matrices. `state` are the two moments.
    fn step_rest(&self, step: &Step) -> Result<()> {
        let (rank, world) = (step.ranks.comm.rank(), step.ranks.world());
        let [firsts, seconds] = [&step.state[1], &step.state[2]];
        let [mut params, mut grads, mut exp_avgs, mut exp_avg_sqs, mut copies] = [const { Vec::new() }; 5];
        for (unit, layout) in firsts.layouts.iter().enumerate() {
            for owned in layout.owned(rank, world) {
                let of_shard = |shard: &Tensor| shard.narrow(0, owned.piece.shard_start, owned.piece.length);
                let of_part = |part: &Tensor| part.narrow(0, owned.start, owned.piece.length);
                params.push(of_shard(&step.params[unit]));
                grads.push(of_shard(&step.grads[unit]));
                exp_avgs.push(of_part(&firsts.shards[unit]));
                exp_avg_sqs.push(of_part(&seconds.shards[unit]));
                copies.extend(step.copies.map(|copies| of_shard(&copies[unit])));
            }
        }
        let tensors = AdamWState {
            params: &params,
            grads: &grads,
            exp_avgs: &exp_avgs,
            exp_avg_sqs: &exp_avg_sqs,
            copies: step.copies.map(|_| &copies[..]),
            divisor: step.divisor,
            steps: step.steps,
        };
        nestor_torch::adamw(&tensors, &self.rest.at(step.lr * self.rest_lr_ratio))
    }

    /// Steps this rank's elements of the hidden matrices of a unit, whose gradients it overwrites.
    fn step_matrices(&self, step: &Step, unit: usize) -> Result<()> {
        let (rank, world) = (step.ranks.comm.rank(), step.ranks.world());
        let (layout, matrices) = (&step.units[unit], &step.state[0].layouts[unit]);
        let (grad, momentum) = (&step.grads[unit], &step.state[0].shards[unit]);
        let owned = matrices.owned(rank, world);
        for owned in &owned {
            let mut grad = grad.narrow(0, owned.piece.shard_start, owned.piece.length);
            let mut momentum = momentum.narrow(0, owned.start, owned.piece.length);
            let _ = grad.g_div_scalar_(step.divisor);
            let _ = momentum.lerp_(&grad, 1.0 - self.momentum);
            let _ = grad.lerp_(&momentum, self.momentum);
        }
        let whole = step.ranks.whole_of(layout, grad)?;
        for (number, param) in matrices.params.iter().enumerate() {
            let mut update = layout.view(&whole, param);
            if (unit + number) % world == rank {
                update.copy_(&(orthogonal(&update) * self.scale_of(param)));
            } else {
                let _ = update.zero_();
            }
        }
        if !step.ranks.is_alone() {
            step.ranks.scatter_into(layout, grad, &whole)?.wait()?;
        }
        for owned in &owned {
            let of_shard = |shard: &Tensor| shard.narrow(0, owned.piece.shard_start, owned.piece.length);
            let mut param = of_shard(&step.params[unit]);
            let _ = param.g_mul_scalar_(1.0 - step.lr * self.weight_decay);
            let _ = param.g_sub_(&(of_shard(grad) * step.lr));
            if let Some(copies) = step.copies {
                of_shard(&copies[unit]).copy_(&param);
            }
        }
        Ok(())
    }

    fn scale_of(&self, matrix: &Param) -> f64 {
        let [rows, cols] = [matrix.shape[0] as f64, matrix.shape[1] as f64];
        match self.scale {
            MuonScale::AspectRatio => (rows / cols).max(1.0).sqrt(),
            MuonScale::MatchRmsAdamw => 0.2 * rows.max(cols).sqrt(),
        }
    }
}

impl UpdateRule for Muon {
    fn state(&self, unit: &Layout) -> Vec<(&'static str, Layout)> {
        let is_hidden = |param: &Param| unit.name != OUTER && param.shape.len() == 2;
        let [first, second] = AdamW::moments(&unit.part(|param| !is_hidden(param)));
        vec![("momentum_buffer", unit.part(is_hidden)), first, second]
    }

    fn state_in_words(&self) -> &'static str {
        "momentum of Muon, moments of AdamW"
    }

    fn step(&self, step: &Step) -> Result<()> {
        // First, since the matrices' exchange overwrites all gradients of a unit.
        self.step_rest(step)?;
        let with_matrices = |unit: &usize| !step.state[0].layouts[*unit].params.is_empty();
        (0..step.units.len()).filter(with_matrices).try_for_each(|unit| self.step_matrices(step, unit))
    }
}

/// About the orthogonal matrix nearest to a float32 matrix: Newton-Schulz iterations with a polynomial of degree five.
fn orthogonal(matrix: &Tensor) -> Tensor {
    let [a, b, c] = COEFFICIENTS;
    let size = matrix.size();
    let is_tall = size[0] > size[1];
    // The products of the short side are the smaller ones.
    let wide = if is_tall { matrix.tr() } else { matrix.shallow_clone() };
    let mut x = &wide / wide.norm().clamp_min(EPS);
    for _ in 0..ITERATIONS {
        let gram = x.matmul(&x.tr());
        let polynomial = &gram * b + gram.matmul(&gram) * c;
        x = &x * a + polynomial.matmul(&x);
    }
    if is_tall { x.tr() } else { x }
}
