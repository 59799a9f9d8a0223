//! The update of one iteration: for each mini-batch the losses and gradients of its micro-batches, then an optimizer step.

use std::f64::consts::PI;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::batching::{advance, all_mini_batches, remaining_mini_batches};
use super::lm_head::{PassOptions, TokenGrads, TokenStats, policy_gradients};
use super::losses::{LossInputs, LossMetrics, LossOutputs, MicroBatchMetrics, PluginLoss, TokenWeights, policy_loss};
use super::network::Network;
use super::packing::Packed;
use super::recompute::agreed;
use crate::data::Batch;
use crate::failpoint::failpoint;
use crate::ranks::exchange;
use crate::recipe::{Schedule, Update};
use crate::shard::StepReport;

/// Settings of one iteration's update.
#[derive(Debug, Clone, Copy)]
pub struct UpdateSettings<'a> {
    /// The section `update` of the recipe.
    pub update: &'a Update,
    /// The loss of the recipe's section `loss`.
    pub loss: Option<PluginLoss<'a>>,
    /// Learning rate of this iteration.
    pub lr: f64,
    /// Sampling temperature, at which log-probs are taken.
    pub temperature: f64,
    /// The longest response allowed.
    pub max_response_tokens: usize,
    /// Seed of the shuffle.
    pub seed: u64,
}

/// Metrics of one iteration's update, over all ranks; also its progress, where a signal interrupted it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateReport {
    pub each: Vec<OptimizerStep>,
    /// Tokens of all sequences that were trained on.
    pub tokens: u64,
    /// Tokens of all backward passes: those that sequences have in common count once.
    pub distinct_tokens: u64,
    /// Mean and largest |behaviour - update| log-prob before the first optimizer step.
    pub logprob_diff: Difference,
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerStep {
    /// Losses of the mini-batch.
    pub losses: LossMetrics,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// The gradient was not finite, so the step changed nothing.
    pub skipped: bool,
    /// The loss scale of the gradient, in float16.
    pub loss_scale: Option<f64>,
}

/// Mean and largest absolute difference of log-probs, over tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    pub mean: f64,
    pub max: f64,
}

impl UpdateReport {
    /// Losses, averaged over mini-batches.
    pub fn losses(&self) -> LossMetrics {
        LossMetrics::sum(self.each.iter().map(|step| &step.losses)) * (1.0 / self.each.len().max(1) as f64)
    }

    /// Mean gradient norm before clipping, skipped steps left out.
    pub fn grad_norm(&self) -> f64 {
        let made = self.each.iter().filter(|step| !step.skipped);
        made.map(|step| step.grad_norm).sum::<f64>() / self.steps().max(1) as f64
    }

    /// Number of optimizer steps, skipped ones left out.
    pub fn steps(&self) -> usize {
        self.each.iter().filter(|step| !step.skipped).count()
    }

    /// True between two epochs of `epoch` optimizer steps each, if the policy moved further than `target_kl` in the last one.
    fn exceeds(&self, target_kl: f64, epoch: usize) -> bool {
        let done = self.each.len();
        if done == 0 || !done.is_multiple_of(epoch) {
            return false;
        }
        let moved = self.each[done - epoch..].iter().filter_map(|step| step.losses.get("policy/approx_kl"));
        moved.sum::<f64>() / epoch as f64 > target_kl
    }

    /// Number of optimizer steps skipped because the gradient was not finite.
    pub fn skipped(&self) -> usize {
        self.each.len() - self.steps()
    }
}

/// Updates the policy on a scored batch.
pub fn update(policy: &mut Network, batch: &Batch, settings: &UpdateSettings) -> Result<UpdateReport> {
    let mut report = UpdateReport::default();
    run_remaining(policy, batch, settings, &mut report, || false)?;
    Ok(report)
}

/// Continues the update after the optimizer steps in `report`. A signal ends it between two mini-batches, and so does a
/// rank whose `pause` asks for it. Returns true once no mini-batch remains.
pub fn run_remaining(
    policy: &mut Network,
    batch: &Batch,
    settings: &UpdateSettings,
    report: &mut UpdateReport,
    pause: impl Fn() -> bool,
) -> Result<bool> {
    let update = settings.update;
    if let Some(recomputed) = &batch.recomputed {
        report.logprob_diff = difference(&batch.rows.logprobs, recomputed);
    }
    let done = report.each.len();
    let epoch = all_mini_batches(batch, update, settings.seed).len() / update.epochs as usize;
    let batching = policy.micro_batching(update.micro_batch_tokens);
    for indices in remaining_mini_batches(batching, batch, update, settings.seed, done) {
        if update.target_kl.is_some_and(|target| report.exceeds(target, epoch)) {
            break;
        }
        // At least one step between two pauses.
        if policy.ranks.check_stop_or(report.each.len() > done && pause())? {
            return Ok(false);
        }
        let gradient = gradients(policy, batch, &indices, settings)?;
        if report.each.is_empty() && batch.recomputed.is_none() {
            report.logprob_diff = gradient.logprob_diff;
        }
        let StepReport { grad_norm, skipped, loss_scale } = policy.step(settings.lr, update.grad_clip)?;
        report.tokens += gradient.tokens;
        report.distinct_tokens += gradient.distinct_tokens;
        report.each.push(OptimizerStep { losses: gradient.losses, grad_norm, skipped, loss_scale });
        policy.check_skipped(update.max_skipped).context("updating the policy")?;
    }
    Ok(true)
}

/// Metrics of one mini-batch's gradient, over all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GradientReport {
    pub losses: LossMetrics,
    /// Tokens of the mini-batch's sequences.
    pub tokens: u64,
    /// Tokens of all backward passes.
    pub distinct_tokens: u64,
    /// Mean and largest |behaviour - update| log-prob.
    pub logprob_diff: Difference,
}

/// Computes the gradient of the mini-batch of these sequences into the optimizer's gradient sums. Token weights are those of
/// the whole mini-batch, so that neither the number of ranks nor the size of micro-batches changes the gradient.
pub fn gradients(
    policy: &mut Network,
    batch: &Batch,
    indices: &[usize],
    settings: &UpdateSettings,
) -> Result<GradientReport> {
    let update = settings.update;
    let lengths = indices.iter().flat_map(|&i| &batch.sequences[i].rows).map(|&row| batch.rows.response(row).len());
    let token_weights = TokenWeights::new(update, lengths, settings.max_response_tokens);
    let micro_batches = policy.micro_batching(update.micro_batch_tokens).own(batch, indices);
    let recompute = agreed((&policy.model, &policy.ranks), batch, &micro_batches, update.recompute)?;
    let options =
        PassOptions { temperature: settings.temperature, recompute, loss_factor: policy.optimizer.loss_factor() };

    policy.optimizer.zero_grad();
    let (mut tokens, mut distinct_tokens) = (0, 0);
    let (mut differences, mut losses_of_micro_batches) = (Vec::new(), Vec::new());
    let ranks = policy.ranks.clone();
    let with_entropy = update.entropy != 0.0 || settings.loss.is_some_and(|plugin| plugin.loss.needs().entropy);
    for micro in micro_batches {
        let Some(micro) = micro else {
            policy.idle(recompute)?;
            continue;
        };
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        let (model, sums) = policy.for_backward();
        let packed = Packed::new(&sequences, &batch.rows, model)?;
        let columns = LossColumns::new(&packed, batch, &token_weights);
        let losses = policy_gradients(model, &packed, options, sums, |stats| {
            differences.push((&stats.logprobs - &columns.behaviour).abs());
            differentiate(stats, with_entropy, |logprobs, entropy| {
                match policy_loss(&columns.inputs(logprobs, entropy), update, settings.loss) {
                    Ok(LossOutputs { loss, metrics }) => (loss, Ok(metrics)),
                    // The pass ends with a gradient of zeros, and the update with the plugin's error.
                    Err(error) => ((logprobs + entropy).sum(Kind::Double) * 0.0, Err(error)),
                }
            })
        })??;
        losses_of_micro_batches.push(losses);
        tokens += packed.sequence_tokens() as u64;
        distinct_tokens += packed.packing.tokens() as u64;
        advance(&ranks, &sequences);
        failpoint("mid-mini-batch");
    }
    let own = MiniBatchStats::new(&losses_of_micro_batches, &differences, [tokens, distinct_tokens]);
    Ok(MiniBatchStats::report(&exchange(&*ranks.comm, Ok(own))?))
}

/// The constant inputs of one micro-batch's loss, see [`LossInputs`].
struct LossColumns {
    old_logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    ref_logprobs: Option<Tensor>,
    responses: Tensor,
    weights: Tensor,
    regularizer_weights: Tensor,
    token_weights: TokenWeights,
}

impl LossColumns {
    fn new(packed: &Packed, batch: &Batch, weights: &TokenWeights) -> Self {
        Self {
            old_logprobs: packed.pick(batch.old_logprobs()),
            behaviour: packed.pick(&batch.rows.logprobs),
            advantages: packed.pick(&batch.rows.advantages),
            ref_logprobs: batch.rows.ref_logprobs.as_ref().map(|column| packed.pick(column)),
            responses: packed.responses(),
            weights: packed.per_response(|length| weights.of(length)),
            regularizer_weights: packed.per_response(|length| weights.of_regularizer(length)),
            token_weights: *weights,
        }
    }

    fn inputs<'a>(&'a self, logprobs: &'a Tensor, entropy: &'a Tensor) -> LossInputs<'a> {
        LossInputs {
            logprobs,
            entropy,
            old_logprobs: &self.old_logprobs,
            behaviour: &self.behaviour,
            advantages: &self.advantages,
            ref_logprobs: self.ref_logprobs.as_ref(),
            responses: &self.responses,
            weights: &self.weights,
            regularizer_weights: &self.regularizer_weights,
            token_weights: self.token_weights,
        }
    }
}

/// One rank's share of a mini-batch's metrics.
#[derive(Debug, Serialize, Deserialize)]
struct MiniBatchStats {
    losses: LossMetrics,
    tokens: u64,
    distinct_tokens: u64,
    /// Sum, number and largest of |behaviour - update| log-probs.
    difference: (f64, u64, f64),
}

impl MiniBatchStats {
    fn new(losses: &[MicroBatchMetrics], differences: &[Tensor], [tokens, distinct_tokens]: [u64; 2]) -> Self {
        let mut difference = (0.0, 0, 0.0);
        if !differences.is_empty() {
            let all = Tensor::cat(differences, 0);
            difference = (all.sum(Kind::Double).double_value(&[]), all.numel() as u64, all.max().double_value(&[]));
        }
        Self { losses: LossMetrics::read(losses), tokens, distinct_tokens, difference }
    }

    /// Combines the shares of all ranks.
    fn report(all: &[Self]) -> GradientReport {
        let losses = LossMetrics::sum(all.iter().map(|own| &own.losses));
        let count: u64 = all.iter().map(|own| own.difference.1).sum();
        let mean = all.iter().map(|own| own.difference.0).sum::<f64>() / count as f64;
        let max = largest(all.iter().map(|own| own.difference.2));
        let (tokens, distinct_tokens) =
            all.iter().fold((0, 0), |sum, own| (sum.0 + own.tokens, sum.1 + own.distinct_tokens));
        GradientReport { losses, tokens, distinct_tokens, logprob_diff: Difference { mean, max } }
    }
}

/// Differentiates a loss of the token statistics. Returns its gradients, and the second result of `loss`.
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

/// The learning rate of iteration `i` (from 0) out of `total`: linear warm-up, then constant, half a cosine or a line. In a warm-up
/// of w iterations, iteration i < w has the share `i / w` of the way from `min_lr_ratio` to 1, as the reference
/// implementation steps its scheduler: the first iteration then has the lowest rate.
pub fn learning_rate(update: &Update, i: u64, total: u64) -> f64 {
    let Update { lr, warmup, schedule, min_lr_ratio, .. } = *update;
    lr * LrSchedule { schedule, warmup, min_lr_ratio, total }.share(i)
}

/// A learning rate over `total` iterations or steps.
#[derive(Debug, Clone, Copy)]
pub struct LrSchedule {
    pub schedule: Schedule,
    pub warmup: u64,
    pub min_lr_ratio: f64,
    pub total: u64,
}

impl LrSchedule {
    /// The share of the peak that step `i` has, see [`learning_rate`].
    pub fn share(self, i: u64) -> f64 {
        let share = if i < self.warmup {
            i as f64 / self.warmup as f64
        } else {
            let length = self.total.saturating_sub(self.warmup).max(1);
            let progress = ((i - self.warmup) as f64 / length as f64).min(1.0);
            match self.schedule {
                Schedule::Constant => 1.0,
                Schedule::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
                Schedule::Linear => 1.0 - progress,
            }
        };
        self.min_lr_ratio + (1.0 - self.min_lr_ratio) * share
    }
}

fn difference(a: &[f32], b: &[f32]) -> Difference {
    let each = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    Difference { mean: each.clone().sum::<f64>() / a.len().max(1) as f64, max: largest(each) }
}

/// The largest number, or NaN if any is: `f64::max` would hide a NaN.
fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |max: f64, x| if x.is_nan() || x > max { x } else { max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_shows_a_nan() {
        assert_eq!(difference(&[0.0, -1.0], &[0.5, -3.0]), Difference { mean: 1.25, max: 2.0 });
        for a in [[f32::NAN, 0.0], [0.0, f32::NAN]] {
            let Difference { mean, max } = difference(&a, &[1.0, 1.0]);
            assert!(mean.is_nan() && max.is_nan());
        }
    }
}
