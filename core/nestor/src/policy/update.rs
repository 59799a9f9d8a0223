//! The update of one iteration: mini-batches cut from the global order and dealt to ranks, micro-batches by token budget,
//! loss, backward pass and optimiser step.

use anyhow::Result;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::aggregate::Shares;
use super::deal::dealt_micro_batches;
use super::head::{PassOptions, TokenGrads, TokenStats, policy_gradients, token_stats};
use super::loss::{LossInputs, LossSums, policy_loss};
use super::network::Network;
use super::packed::Packed;
use super::pass::idle_forward;
use crate::data::{Batch, Sequence};
use crate::dist::{Reduce, exchange};
use crate::failpoint::failpoint;
use crate::model::Model;
use crate::recipe::Update;
use crate::shard::{Ranks, StepReport};

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

/// What one iteration's update saw, over all ranks; also how far it came, where a signal cut it short.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Each optimiser step in turn.
    pub each: Vec<OptimizerStep>,
    /// Tokens that went through the backward pass.
    pub tokens: u64,
    /// Mean and largest |behaviour - update| log-prob before the first optimiser step.
    pub logprob_diff: Difference,
}

/// One optimiser step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OptimizerStep {
    /// The losses of its mini-batch.
    pub sums: LossSums,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// The gradient was not finite: nothing was changed.
    pub skipped: bool,
}

/// Mean and largest absolute difference of log-probs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Mean over tokens.
    pub mean: f64,
    /// Largest over tokens.
    pub max: f64,
}

impl UpdateReport {
    /// Losses, averaged over mini-batches.
    pub fn sums(&self) -> LossSums {
        let mut sums = LossSums::default();
        self.each.iter().for_each(|step| sums += step.sums);
        sums * (1.0 / self.each.len().max(1) as f64)
    }

    /// Gradient norm before clipping, averaged over the optimiser steps that were made.
    pub fn grad_norm(&self) -> f64 {
        let made = self.each.iter().filter(|step| !step.skipped);
        made.map(|step| step.grad_norm).sum::<f64>() / self.steps().max(1) as f64
    }

    /// Optimiser steps made.
    pub fn steps(&self) -> usize {
        self.each.iter().filter(|step| !step.skipped).count()
    }

    /// Optimiser steps skipped because the gradient was not finite.
    pub fn skipped(&self) -> usize {
        self.each.len() - self.steps()
    }
}

/// One iteration's update of the policy on a scored batch.
pub fn update(policy: &mut Network, batch: &Batch, settings: &UpdateSettings) -> Result<UpdateReport> {
    let mut report = UpdateReport::default();
    run_remaining(policy, batch, settings, &mut report)?;
    Ok(report)
}

/// The update from where `report` says that it stands. A signal ends it between two mini-batches.
pub fn run_remaining(policy: &mut Network, batch: &Batch, settings: &UpdateSettings, report: &mut UpdateReport) -> Result<()> {
    let update = settings.update;
    if let Some(recomputed) = &batch.recomputed {
        report.logprob_diff = difference(&batch.rows.logprobs, recomputed);
    }
    for indices in remaining_mini_batches(&policy.ranks, batch, settings, report.each.len()) {
        policy.ranks.check_stop()?;
        let gradient = gradients(policy, batch, &indices, settings)?;
        if report.each.is_empty() && batch.recomputed.is_none() {
            report.logprob_diff = gradient.logprob_diff;
        }
        let StepReport { grad_norm, skipped } = policy.step(update, settings.lr, update.grad_clip)?;
        report.tokens += gradient.tokens;
        report.each.push(OptimizerStep { sums: gradient.sums, grad_norm, skipped });
    }
    Ok(())
}

/// What the gradient of one mini-batch saw, over all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GradientReport {
    /// Its losses.
    pub sums: LossSums,
    /// Tokens that went through the backward pass.
    pub tokens: u64,
    /// Mean and largest |behaviour - update| log-prob.
    pub logprob_diff: Difference,
}

/// Leaves the gradient of the mini-batch of these sequences in the optimiser's gradient sums. Shares count over the whole
/// mini-batch, so that neither the number of ranks nor the size of micro-batches changes it.
pub fn gradients(
    policy: &mut Network,
    batch: &Batch,
    indices: &[usize],
    settings: &UpdateSettings,
) -> Result<GradientReport> {
    let update = settings.update;
    let lengths = indices.iter().flat_map(|&i| &batch.sequences[i].rows).map(|&row| batch.rows.response(row).len());
    let shares = Shares::new(update, lengths, settings.max_response_tokens);
    let options = PassOptions { temperature: settings.temperature, recompute: update.recompute };

    policy.optimizer.zero_grad();
    let mut tokens = 0;
    let (mut differences, mut sums_of_micro_batches) = (Vec::new(), Vec::new());
    let ranks = policy.ranks.clone();
    for micro in dealt_micro_batches(&ranks, batch, indices, update.micro_batch_tokens) {
        let Some(micro) = micro else {
            policy.idle(update.recompute)?;
            continue;
        };
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        let (model, sums) = policy.for_backward();
        let packed = Packed::new(&sequences, &batch.rows, model.device());
        let behaviour = packed.pick(&batch.rows.logprobs);
        let old = packed.pick(batch.old_logprobs());
        let advantages = packed.pick(&batch.rows.advantages);
        let reference = batch.rows.ref_logprobs.as_ref().map(|column| packed.pick(column));
        let (responses, weights) = (packed.responses(), packed.per_response(|length| shares.of(length)));
        let losses = policy_gradients(model, &packed, options, sums, |stats| {
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
        })?;
        sums_of_micro_batches.push(losses);
        tokens += packed.packing.tokens() as u64;
        advance(&ranks, &sequences);
        failpoint("mid-mini-batch");
    }
    let own = MiniBatchStats::new(&sums_of_micro_batches, &differences, tokens);
    Ok(MiniBatchStats::report(&exchange(&*ranks.comm, Ok(own))?))
}

/// What one rank saw of a mini-batch.
#[derive(Debug, Serialize, Deserialize)]
struct MiniBatchStats {
    /// In the order of [`LossSums`].
    sums: [f64; 7],
    tokens: u64,
    /// Sum, number and largest of |behaviour - update| log-probs.
    difference: (f64, u64, f64),
}

impl MiniBatchStats {
    fn new(sums: &[Tensor], differences: &[Tensor], tokens: u64) -> Self {
        let mut own = [0.0; 7];
        let mut difference = (0.0, 0, 0.0);
        if !sums.is_empty() {
            Tensor::stack(sums, 0).sum_dim_intlist(0, false, Kind::Double).copy_data(&mut own, 7);
            let all = Tensor::cat(differences, 0);
            difference = (all.sum(Kind::Double).double_value(&[]), all.numel() as u64, all.max().double_value(&[]));
        }
        Self { sums: own, tokens, difference }
    }

    /// Of all ranks.
    fn report(all: &[Self]) -> GradientReport {
        let sums = std::array::from_fn(|i| all.iter().map(|seen| seen.sums[i]).sum());
        let count: u64 = all.iter().map(|seen| seen.difference.1).sum();
        let mean = all.iter().map(|seen| seen.difference.0).sum::<f64>() / count as f64;
        let max = largest(all.iter().map(|seen| seen.difference.2));
        let tokens = all.iter().map(|seen| seen.tokens).sum();
        GradientReport { sums: LossSums::of(sums), tokens, logprob_diff: Difference { mean, max } }
    }
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

/// Sequences of each mini-batch of an iteration, epoch after epoch.
pub fn all_mini_batches(batch: &Batch, update: &Update, seed: u64) -> Vec<Vec<usize>> {
    (0..update.epochs).flat_map(|epoch| mini_batches(batch, update, seed.wrapping_add(u64::from(epoch)))).collect()
}

/// Mini-batches that are still to be done after the first so many; this rank's part of them is planned.
pub fn remaining_mini_batches(ranks: &Ranks, batch: &Batch, settings: &UpdateSettings, done: usize) -> Vec<Vec<usize>> {
    let left: Vec<_> = all_mini_batches(batch, settings.update, settings.seed).into_iter().skip(done).collect();
    let own = |indices| dealt_micro_batches(ranks, batch, indices, settings.update.micro_batch_tokens);
    ranks.progress.set_total(left.iter().flat_map(|indices| own(indices)).flatten().map(|micro| micro.len()).sum());
    left
}

/// These sequences are done.
pub fn advance(ranks: &Ranks, sequences: &[&Sequence]) {
    ranks.progress.advance(sequences.len(), sequences.iter().map(|sequence| sequence.tokens.len()).sum());
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

/// Log-probs of every response token of a batch under a network, as a ragged column; the ranks share the work.
pub fn ragged_logprobs(
    ranks: &Ranks,
    model: &Model,
    batch: &Batch,
    micro_batch_tokens: usize,
    temperature: f64,
) -> Result<Vec<f32>> {
    ragged_column(ranks, model, batch, micro_batch_tokens, |sequences, column| {
        let packed = Packed::new(sequences, &batch.rows, model.device());
        packed.put(&token_stats(model, &packed, temperature)?.logprobs, column);
        Ok(())
    })
    .map(|column| column[..tokens_of(batch)].to_vec())
}

/// Number of response tokens of a batch.
fn tokens_of(batch: &Batch) -> usize {
    batch.rows.token_offsets.last().map_or(0, |&end| end as usize)
}

/// A ragged column with an entry for each response token and each row, which the ranks fill micro-batch by micro-batch. A
/// signal ends it between two of them.
pub fn ragged_column(
    ranks: &Ranks,
    model: &Model,
    batch: &Batch,
    micro_batch_tokens: usize,
    fill: impl Fn(&[&Sequence], &mut [f32]) -> Result<()>,
) -> Result<Vec<f32>> {
    let mut column = vec![0f32; tokens_of(batch) + batch.rows.len()];
    let all: Vec<usize> = (0..batch.sequences.len()).collect();
    let micro_batches = dealt_micro_batches(ranks, batch, &all, micro_batch_tokens);
    ranks.progress.set_total(micro_batches.iter().flatten().map(Vec::len).sum());
    for micro in micro_batches {
        ranks.check_stop()?;
        let Some(micro) = micro else {
            idle_forward(model)?;
            continue;
        };
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        fill(&sequences, &mut column)?;
        advance(ranks, &sequences);
    }
    let comm = &ranks.comm;
    if !comm.is_alone() {
        // What the others computed is zero here.
        let sum = Tensor::from_slice(&column).to_device(comm.device());
        comm.all_reduce(&sum, Reduce::Sum)?;
        let count = column.len();
        sum.to_device(Device::Cpu).copy_data(&mut column, count);
    }
    Ok(column)
}

fn difference(a: &[f32], b: &[f32]) -> Difference {
    let each = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    Difference { mean: each.clone().sum::<f64>() / a.len().max(1) as f64, max: largest(each) }
}

/// `f64::max` would drop a NaN, which is just what must be seen.
fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |max: f64, x| if x.is_nan() || x > max { x } else { max })
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
