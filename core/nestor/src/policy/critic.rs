//! The critic: its values, and its update by a clipped value loss on the same mini-batches as the policy.
//!
//! The loss counts the state before each response token, and with target 0 the state after the last one.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor, no_grad};

use super::backward::{HeadInputs, accumulate_gradients, states};
use super::batching::{ScoringPasses, advance, remaining_mini_batches};
use super::logprobs::shared_numbers;
use super::losses::{TokenWeights, ValueInputs, value_loss};
use super::network::Network;
use super::packing::Packed;
use super::recompute::agreed;
use super::update::UpdateSettings;
use crate::data::{Batch, Rows};
use crate::model::Model;
use crate::model::linear::{Linear, Tape};
use crate::model::unit_weights::OuterWeights;
use crate::ranks::exchange;
use crate::recipe::{Critic, Recompute};
use crate::shard::{GradientSums, Ranks};

/// Metrics of one iteration's update of a critic, over all ranks; also its progress, where a signal interrupted it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CriticReport {
    pub each: Vec<CriticStep>,
}

/// One optimizer step of a critic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CriticStep {
    /// Value loss of the mini-batch.
    pub loss: f64,
    /// Share of states where the clipped term is the larger.
    pub clip_fraction: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// The gradient was not finite, so the step changed nothing.
    pub skipped: bool,
}

impl CriticReport {
    /// The mean of a number over mini-batches.
    pub fn mean(&self, number: impl Fn(&CriticStep) -> f64) -> f64 {
        self.each.iter().map(number).sum::<f64>() / self.each.len().max(1) as f64
    }

    /// Mean gradient norm before clipping, skipped steps left out.
    pub fn grad_norm(&self) -> f64 {
        let made = self.each.iter().filter(|step| !step.skipped).map(|step| step.grad_norm);
        made.sum::<f64>() / (self.each.len() - self.skipped()).max(1) as f64
    }

    /// Optimizer steps skipped because the gradient was not finite.
    pub fn skipped(&self) -> usize {
        self.each.iter().filter(|step| step.skipped).count()
    }
}

/// A critic's values of the computed states (U), float32, without gradients.
fn values(critic: &Model, packed: &Packed) -> Result<Tensor> {
    let mut reader = critic.reader();
    let states = states(critic, packed, &mut reader)?;
    no_grad(|| Ok(value_head(critic, &critic.outer_weights(&mut reader, false)?, &states, &mut Tape::off())))
}

/// Options of a critic's forward and backward pass.
#[derive(Debug, Clone, Copy)]
struct ValuePass {
    recompute: Recompute,
    /// The gradients are multiplied by it.
    loss_factor: f64,
}

/// Forward and backward pass of one micro-batch under a loss of its values (N): adds the gradient to `sums`.
fn value_gradients<M>(
    critic: &Model,
    packed: &Packed,
    options: ValuePass,
    sums: GradientSums,
    loss: impl FnOnce(&Tensor) -> (Tensor, M),
) -> Result<M> {
    accumulate_gradients(critic, packed, options.recompute, sums, |HeadInputs { states, outer, sum }| {
        let (states, mut tape) = (states.detach().set_requires_grad(true), Tape::on());
        let (loss, metrics) = loss(&packed.read(&value_head(critic, outer, &states, &mut tape)));
        let grad = loss.full_like(options.loss_factor);
        let (of_states, gradients) = tape.backward(loss, &grad, &states);
        if let Some(sum) = sum {
            no_grad(|| {
                Linear::add_gradients(&sum.head, &gradients.layers[0], critic.ops, false);
                critic.ops.add_gradient(&sum.norm, &gradients.norms[0], false);
            });
        }
        (of_states, metrics)
    })
}

/// Values (N) of states (N, E), float32.
fn value_head(critic: &Model, outer: &OuterWeights, states: &Tensor, tape: &mut Tape) -> Tensor {
    let states = critic.final_norm(outer, states, tape);
    outer.head.apply(&states, tape).squeeze_dim(-1).to_kind(Kind::Float)
}

/// A critic's values of every state of a batch, as the column `values` of [`Rows`]; the ranks share the work.
pub fn ragged_values(ranks: &Ranks, critic: &Model, batch: &Batch, passes: &ScoringPasses) -> Result<Vec<f32>> {
    let size = batch.response_tokens() + batch.rows.len();
    shared_numbers(ranks, critic, batch, passes, size, |sequences, column| {
        let packed = Packed::with_values(sequences, &batch.rows, critic)?;
        packed.put(&packed.read(&values(critic, &packed)?), column);
        Ok(())
    })
}

/// Updates the critic on a batch with values and returns, from the mini-batch after those in `report` on. A signal or a
/// `pause` ends the update between two mini-batches, as with the policy's. Returns true once no mini-batch remains.
pub fn run_remaining(
    critic: &mut Network,
    batch: &Batch,
    section: &Critic,
    settings: &UpdateSettings,
    report: &mut CriticReport,
    pause: impl Fn() -> bool,
) -> Result<bool> {
    let done = report.each.len();
    let batching = critic.micro_batching(settings.update.micro_batch_tokens);
    for indices in remaining_mini_batches(batching, batch, settings.update, settings.seed, done) {
        if critic.ranks.check_stop_or(report.each.len() > done && pause())? {
            return Ok(false);
        }
        let (loss, clip_fraction) = gradients(critic, batch, &indices, section.clip, settings)?;
        let step = critic.step(section.lr, section.grad_clip).context("updating the critic")?;
        report.each.push(CriticStep { loss, clip_fraction, grad_norm: step.grad_norm, skipped: step.skipped });
        critic.check_skipped(settings.update.max_skipped).context("updating the critic")?;
    }
    Ok(true)
}

/// Computes the gradient of the mini-batch of these sequences into the optimizer's gradient sums. Returns the loss and the
/// share of states where the clipped term is the larger.
pub fn gradients(
    critic: &mut Network,
    batch: &Batch,
    indices: &[usize],
    clip: f64,
    settings: &UpdateSettings,
) -> Result<(f64, f64)> {
    let old = batch.rows.values.as_ref().context("the batch has no values")?;
    let targets = targets(&batch.rows);
    let lengths = indices.iter().flat_map(|&i| &batch.sequences[i].rows).map(|&row| batch.rows.response(row).len() + 1);
    let token_weights = TokenWeights::new(settings.update, lengths, settings.max_response_tokens);
    critic.optimizer.zero_grad();
    let micro_batches = critic.micro_batching(settings.update.micro_batch_tokens).own(batch, indices);
    let recompute = agreed((&critic.model, &critic.ranks), batch, &micro_batches, settings.update.recompute)?;
    let options = ValuePass { recompute, loss_factor: critic.optimizer.loss_factor() };
    let mut sums = (0.0, 0.0);
    let ranks = critic.ranks.clone();
    for micro in micro_batches {
        let Some(micro) = micro else {
            critic.idle(recompute)?;
            continue;
        };
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        let (model, grads) = critic.for_backward();
        let packed = Packed::with_values(&sequences, &batch.rows, model)?;
        let (old_values, returns) = (packed.pick(old), packed.pick(&targets));
        let weights = packed.per_response(|length| token_weights.of(length));
        let (loss, clipped) = value_gradients(model, &packed, options, grads, |values| {
            let inputs = ValueInputs { values, old_values: &old_values, returns: &returns, weights: &weights };
            let (loss, clipped) = value_loss(&inputs, clip);
            let sums = (loss.detach().double_value(&[]), clipped.sum(Kind::Float).double_value(&[]));
            (loss, sums)
        })?;
        sums.0 += loss;
        sums.1 += clipped * token_weights.mean();
        advance(&ranks, &sequences);
    }
    let all: Vec<(f64, f64)> = exchange(&*ranks.comm, Ok(sums))?;
    Ok((all.iter().map(|sums| sums.0).sum(), all.iter().map(|sums| sums.1).sum()))
}

/// The column of targets: a row's returns, then 0.
fn targets(rows: &Rows) -> Vec<f32> {
    (0..rows.len() as u32).flat_map(|row| rows.returns[rows.response(row)].iter().copied().chain([0.0])).collect()
}

/// The values of the states before each response token, in the order of the token columns.
pub fn token_values(rows: &Rows) -> impl Iterator<Item = f32> {
    let all = rows.values.as_deref().unwrap_or_default();
    (0..rows.len()).flat_map(move |row| {
        let tokens = rows.response(row as u32);
        all[tokens.start + row..tokens.end + row].iter().copied()
    })
}

/// Share of the returns' variance that the values explain, over response tokens: 1 - Var(R - v) / Var(R).
pub fn explained_variance(rows: &Rows) -> f64 {
    let variance = |numbers: &[f64]| {
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
    };
    let returns: Vec<f64> = rows.returns.iter().map(|&r| f64::from(r)).collect();
    let errors: Vec<f64> = returns.iter().zip(token_values(rows)).map(|(r, v)| r - f64::from(v)).collect();
    // Without variance there is nothing to explain, and a NaN would be no number in the metrics.
    if variance(&returns) == 0.0 { 0.0 } else { 1.0 - variance(&errors) / variance(&returns) }
}
