//! The update of one iteration: mini-batches cut from the global order, micro-batches by token budget, loss, backward
//! pass and optimiser step.

use anyhow::Result;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};

use super::aggregate::Shares;
use super::head::{PassOptions, TokenGrads, TokenStats, policy_gradients, token_stats};
use super::loss::{LossInputs, LossSums, policy_loss};
use super::network::Network;
use super::packed::Packed;
use crate::data::Batch;
use crate::failpoint::failpoint;
use crate::model::Model;
use crate::recipe::Update;

/// How one iteration updates.
#[derive(Debug, Clone, Copy)]
pub struct UpdateSettings<'a> {
    /// The recipe's section.
    pub update: &'a Update,
    /// Learning rate of this iteration.
    pub lr: f64,
    /// Sampling temperature: log-probs are taken at it.
    pub temperature: f64,
    /// The longest response allowed.
    pub max_response_tokens: usize,
    /// Seed of the shuffle.
    pub seed: u64,
}

/// What one iteration's update saw.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UpdateReport {
    /// Losses, averaged over mini-batches.
    pub sums: LossSums,
    /// Gradient norm before clipping, averaged over the optimiser steps that were made.
    pub grad_norm: f64,
    /// Optimiser steps made.
    pub steps: u32,
    /// Optimiser steps skipped because the gradient was not finite.
    pub skipped: u32,
    /// Tokens that went through the backward pass.
    pub tokens: u64,
    /// Mean and largest |behaviour - update| log-prob before the first optimiser step.
    pub logprob_diff: Difference,
}

/// Mean and largest absolute difference of log-probs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Difference {
    /// Mean over tokens.
    pub mean: f64,
    /// Largest over tokens.
    pub max: f64,
}

/// One iteration's update of the policy on a scored batch.
pub fn update(policy: &mut Network, batch: &Batch, settings: &UpdateSettings) -> Result<UpdateReport> {
    let update = settings.update;
    let mut report = UpdateReport::default();
    if let Some(recomputed) = &batch.recomputed {
        report.logprob_diff = difference(&batch.rows.logprobs, recomputed);
    }
    let mut shares = 0.0;
    for epoch in 0..update.epochs {
        for indices in mini_batches(batch, update, settings.seed.wrapping_add(u64::from(epoch))) {
            let first = report.steps + report.skipped == 0;
            let gradient = gradients(policy, batch, &indices, settings);
            if first && batch.recomputed.is_none() {
                report.logprob_diff = gradient.logprob_diff;
            }
            report.sums += gradient.sums;
            report.tokens += gradient.tokens;
            shares += 1.0;
            let step = policy.step(update, settings.lr, update.grad_clip)?;
            report.skipped += u32::from(step.skipped);
            if !step.skipped {
                report.steps += 1;
                report.grad_norm += step.grad_norm;
            }
        }
    }
    report.sums = report.sums * (1.0 / f64::max(shares, 1.0));
    report.grad_norm /= f64::from(report.steps.max(1));
    Ok(report)
}

/// What the gradient of one mini-batch saw.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GradientReport {
    /// Its losses.
    pub sums: LossSums,
    /// Tokens that went through the backward pass.
    pub tokens: u64,
    /// Mean and largest |behaviour - update| log-prob.
    pub logprob_diff: Difference,
}

/// Leaves the gradient of the mini-batch of these sequences in the optimiser's gradient sums.
pub fn gradients(policy: &mut Network, batch: &Batch, indices: &[usize], settings: &UpdateSettings) -> GradientReport {
    let update = settings.update;
    let lengths = indices.iter().flat_map(|&i| &batch.sequences[i].rows).map(|&row| batch.rows.response(row).len());
    let shares = Shares::new(update, lengths, settings.max_response_tokens);
    let options = PassOptions { temperature: settings.temperature, recompute: update.recompute };

    policy.optimizer.zero_grad();
    let mut report = GradientReport::default();
    let (mut differences, mut sums_of_micro_batches) = (Vec::new(), Vec::new());
    for micro in micro_batches(batch, indices, update.micro_batch_tokens) {
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        let (model, mut sums) = policy.for_backward();
        let packed = Packed::new(&sequences, &batch.rows, model.device());
        let behaviour = packed.pick(&batch.rows.logprobs);
        let old = packed.pick(batch.old_logprobs());
        let advantages = packed.pick(&batch.rows.advantages);
        let reference = batch.rows.ref_logprobs.as_ref().map(|column| packed.pick(column));
        let (responses, weights) = (packed.responses(), packed.per_response(|length| shares.of(length)));
        let losses = policy_gradients(model, &packed, options, &mut sums, |stats| {
            differences.push((&stats.logprobs - &behaviour).abs());
            differentiate(stats, update.entropy != 0.0, |logprobs, entropy| {
                let outputs = policy_loss(
                    &LossInputs {
                        logprobs,
                        entropy,
                        old_logprobs: &old,
                        behaviour: &behaviour,
                        advantages: &advantages,
                        ref_logprobs: reference.as_ref(),
                        responses: &responses,
                        weights: &weights,
                        mean: shares.mean(),
                    },
                    update,
                );
                (outputs.loss, outputs.sums)
            })
        });
        sums_of_micro_batches.push(losses);
        report.tokens += packed.packing.tokens() as u64;
        failpoint("mid-mini-batch");
    }
    report.sums = LossSums::read(&Tensor::stack(&sums_of_micro_batches, 0).sum_dim_intlist(0, false, Kind::Double));
    let differences = Tensor::cat(&differences, 0);
    report.logprob_diff =
        Difference { mean: differences.mean(Kind::Double).double_value(&[]), max: differences.max().double_value(&[]) };
    report
}

/// Differentiates a loss of the token statistics; gives its gradients and the loss's own second result.
pub fn differentiate<M>(
    stats: &TokenStats,
    with_entropy: bool,
    loss: impl FnOnce(&Tensor, &Tensor) -> (Tensor, M),
) -> (TokenGrads, M) {
    let logprobs = stats.logprobs.detach().set_requires_grad(true);
    let entropy = stats.entropy.detach().set_requires_grad(with_entropy);
    let (loss, metrics) = loss(&logprobs, &entropy);
    let sources = if with_entropy { vec![&logprobs, &entropy] } else { vec![&logprobs] };
    let mut gradients = Tensor::run_backward(&[loss], &sources, false, false).into_iter();
    let logprobs = gradients.next().unwrap_or_else(|| unreachable!("one gradient for each source"));
    (TokenGrads { logprobs, entropy: gradients.next() }, metrics)
}

/// Sequences of each mini-batch: cut from the global order before anything is dealt out.
pub fn mini_batches(batch: &Batch, update: &Update, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..batch.sequences.len()).collect();
    if update.shuffle {
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }
    cut(&order, update.mini_batch, |i| batch.sequences[i].rows.len())
}

/// Sequences of each micro-batch: as many as the token budget allows, at least one.
pub fn micro_batches(batch: &Batch, indices: &[usize], budget: usize) -> Vec<Vec<usize>> {
    cut(indices, budget, |i| batch.sequences[i].tokens.len())
}

/// Cuts a list where the next item would pass the budget.
fn cut(items: &[usize], budget: usize, size: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for &item in items {
        if used.saturating_add(size(item)) > budget {
            parts.push(Vec::new());
            used = 0;
        }
        used += size(item);
        if let Some(part) = parts.last_mut() {
            part.push(item);
        }
    }
    parts
}

/// Log-probs of every response token of a batch under a network, as a ragged column.
pub fn ragged_logprobs(model: &Model, batch: &Batch, micro_batch_tokens: usize, temperature: f64) -> Vec<f32> {
    let mut column = vec![0f32; batch.rows.logprobs.len()];
    let all: Vec<usize> = (0..batch.sequences.len()).collect();
    for micro in micro_batches(batch, &all, micro_batch_tokens) {
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        let packed = Packed::new(&sequences, &batch.rows, model.device());
        packed.put(&token_stats(model, &packed, temperature).logprobs, &mut column);
    }
    column
}

fn difference(a: &[f32], b: &[f32]) -> Difference {
    let each = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    // `f64::max` would drop a NaN, which is just what must be seen.
    let max = each.clone().fold(0.0, |max: f64, d| if d.is_nan() || d > max { d } else { max });
    Difference { mean: each.sum::<f64>() / a.len().max(1) as f64, max }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_shows_what_is_not_a_number() {
        assert_eq!(difference(&[0.0, -1.0], &[0.5, -3.0]), Difference { mean: 1.25, max: 2.0 });
        for a in [[f32::NAN, 0.0], [0.0, f32::NAN]] {
            let Difference { mean, max } = difference(&a, &[1.0, 1.0]);
            assert!(mean.is_nan() && max.is_nan());
        }
    }
}
