//! The critic's update: clipped value loss on the same mini-batches as the policy.
//!
//! With v the value, v_o the value before the update and R the return that the estimator gave as target,
//!
//! ```text
//! max((v - R)^2, (clip(v, v_o - c, v_o + c) - R)^2)     without a factor 1/2, as the reference implementation has it
//! ```
//!
//! for the state before each response token, and with target 0 for the state after the last one.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::aggregate::Shares;
use super::deal::dealt_micro_batches;
use super::head::{value_gradients, values};
use super::network::Network;
use super::packed::Packed;
use super::update::{UpdateSettings, advance, remaining_mini_batches, ragged_column};
use crate::data::{Batch, Rows};
use crate::dist::exchange;
use crate::model::Model;
use crate::recipe::Critic;
use crate::shard::Ranks;

/// What one iteration's update of a critic saw, over all ranks; also how far it came, where a signal cut it short.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CriticReport {
    /// Each optimiser step in turn.
    pub each: Vec<CriticStep>,
}

/// One optimiser step of a critic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CriticStep {
    /// Value loss of its mini-batch.
    pub loss: f64,
    /// Share of states where the clipped term is the larger.
    pub clip_fraction: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// The gradient was not finite: nothing was changed.
    pub skipped: bool,
}

impl CriticReport {
    /// A number of its steps, averaged over mini-batches.
    pub fn mean(&self, number: impl Fn(&CriticStep) -> f64) -> f64 {
        self.each.iter().map(number).sum::<f64>() / self.each.len().max(1) as f64
    }

    /// Gradient norm before clipping, averaged over the optimiser steps that were made.
    pub fn grad_norm(&self) -> f64 {
        let made = self.each.iter().filter(|step| !step.skipped).map(|step| step.grad_norm);
        made.sum::<f64>() / (self.each.len() - self.skipped()).max(1) as f64
    }

    /// Optimiser steps skipped because the gradient was not finite.
    pub fn skipped(&self) -> usize {
        self.each.iter().filter(|step| step.skipped).count()
    }
}

/// What a value loss may look at, one entry per state, float32 (N).
#[derive(Debug)]
pub struct ValueInputs<'a> {
    /// The critic's values; what is differentiated.
    pub values: &'a Tensor,
    /// Values before the update.
    pub old_values: &'a Tensor,
    /// Targets.
    pub returns: &'a Tensor,
    /// Share of each state in the loss.
    pub weights: &'a Tensor,
}

/// The scalar to differentiate, and the states (N) where the clipped term is the larger.
pub fn value_loss(inputs: &ValueInputs, clip: f64) -> (Tensor, Tensor) {
    let ValueInputs { values, old_values, returns, weights } = *inputs;
    let clipped = values.maximum(&(old_values - clip)).minimum(&(old_values + clip));
    let (free, bound) = ((values - returns).square(), (clipped - returns).square());
    ((free.maximum(&bound) * weights).sum(Kind::Double), bound.gt_tensor(&free))
}

/// A critic's values of every state of a batch, as the column `values` of [`Rows`]; the ranks share the work.
pub fn ragged_values(ranks: &Ranks, critic: &Model, batch: &Batch, micro_batch_tokens: usize) -> Result<Vec<f32>> {
    ragged_column(ranks, critic, batch, micro_batch_tokens, |sequences, column| {
        let packed = Packed::with_values(sequences, &batch.rows, critic.device());
        packed.put(&values(critic, &packed)?, column);
        Ok(())
    })
}

/// One iteration's update of the critic on a batch with values and returns, from where `report` says that it stands.
/// A signal ends it between two mini-batches.
pub fn run_remaining(
    critic: &mut Network,
    batch: &Batch,
    section: &Critic,
    settings: &UpdateSettings,
    report: &mut CriticReport,
) -> Result<()> {
    for indices in remaining_mini_batches(&critic.ranks, batch, settings, report.each.len()) {
        critic.ranks.check_stop()?;
        let (loss, clip_fraction) = gradients(critic, batch, &indices, section.clip, settings)?;
        let step = critic.step(settings.update, section.lr, section.grad_clip).context("updating the critic")?;
        report.each.push(CriticStep { loss, clip_fraction, grad_norm: step.grad_norm, skipped: step.skipped });
    }
    Ok(())
}

/// Leaves the gradient of the mini-batch of these sequences in the optimiser's gradient sums; gives the loss and the
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
    let shares = Shares::new(settings.update, lengths, settings.max_response_tokens);
    critic.optimizer.zero_grad();
    let mut sums = (0.0, 0.0);
    let ranks = critic.ranks.clone();
    for micro in dealt_micro_batches(&ranks, batch, indices, settings.update.micro_batch_tokens) {
        let Some(micro) = micro else {
            critic.idle(settings.update.recompute)?;
            continue;
        };
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        let (model, grads) = critic.for_backward();
        let packed = Packed::with_values(&sequences, &batch.rows, model.device());
        let (old_values, returns) = (packed.pick(old), packed.pick(&targets));
        let weights = packed.per_response(|length| shares.of(length));
        let recompute = settings.update.recompute;
        let (loss, clipped) = value_gradients(model, &packed, recompute, grads, |values| {
            let inputs = ValueInputs { values, old_values: &old_values, returns: &returns, weights: &weights };
            let (loss, clipped) = value_loss(&inputs, clip);
            let sums = (loss.detach().double_value(&[]), clipped.sum(Kind::Float).double_value(&[]));
            (loss, sums)
        })?;
        sums.0 += loss;
        sums.1 += clipped * shares.mean();
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

/// How much of the returns' variance the values explain, over response tokens: 1 - Var(R - v) / Var(R).
pub fn explained_variance(rows: &Rows) -> f64 {
    let variance = |numbers: &[f64]| {
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
    };
    let returns: Vec<f64> = rows.returns.iter().map(|&r| f64::from(r)).collect();
    let errors: Vec<f64> = returns.iter().zip(token_values(rows)).map(|(r, v)| r - f64::from(v)).collect();
    // Nothing to explain: a NaN would be no number in the metrics.
    if variance(&returns) == 0.0 { 0.0 } else { 1.0 - variance(&errors) / variance(&returns) }
}
