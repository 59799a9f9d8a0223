//! The LM head: log-probs and entropies of the response tokens, and their gradient.
//!
//! Logits are computed in chunks of the N states that are read, so that those of the whole batch never exist, and the
//! gradient with respect to them overwrites them. With z the logits over the temperature τ, p their softmax, x the
//! log-prob of the target and H the entropy:
//!
//! ```text
//! dx / dlogit_j = ([j is the target] - p_j) / τ
//! dH / dlogit_j = -p_j (log p_j + H) / τ
//! ```

use anyhow::Result;
use nestor_torch::fused::{self, FusedSoftmax};
use tch::{Kind, Tensor, no_grad};

use super::backward::{HeadInputs, accumulate_gradients, states};
use super::packing::Packed;
use crate::model::Model;
use crate::model::qwen2::OuterWeights;
use crate::recipe::Recompute;
use crate::shard::GradientSums;

/// Bytes of the logits in memory at once. If those of all states fit they are computed once, and stay until the loss's
/// gradient overwrites them; else the backward pass computes each chunk again.
pub const CHUNK_BYTES: i64 = 512 << 20;

/// Logit entries that are computed in float32 at once where no fused operation does it: 128 MiB a copy.
pub const PIECE_ELEMENTS: i64 = 1 << 25;

/// Log-prob and entropy of the response tokens, float32 (R) each.
#[derive(Debug)]
pub struct TokenStats {
    /// Log-probs at the sampling temperature.
    pub logprobs: Tensor,
    /// Entropies of the distributions they come from.
    pub entropy: Tensor,
}

/// Gradient of a loss with respect to the token statistics.
#[derive(Debug)]
pub struct TokenGrads {
    /// d loss / d log-prob, (R).
    pub logprobs: Tensor,
    /// d loss / d entropy, (R); absent where the loss has no entropy term.
    pub entropy: Option<Tensor>,
}

/// Options of a forward and backward pass.
#[derive(Debug, Clone, Copy)]
pub struct PassOptions {
    /// Logits are divided by it.
    pub temperature: f64,
    /// Selects the blocks that the backward pass computes again.
    pub recompute: Recompute,
}

/// Log-probs and entropies of the response tokens, without gradients.
pub fn token_stats(model: &Model, packed: &Packed, temperature: f64) -> Result<TokenStats> {
    let mut reader = model.reader();
    let states = states(model, packed, &mut reader)?;
    no_grad(|| {
        let outer = model.outer_weights(&mut reader, false)?;
        let states = model.final_norm(&outer, &states);
        Ok(LogitChunk::all(model, &outer, &states, &packed.targets, temperature).1)
    })
}

/// Forward and backward pass of one micro-batch under a loss of its response tokens: adds the gradient to `sums`. `loss`
/// gets the token statistics and returns its gradient with respect to them.
pub fn policy_gradients<M>(
    model: &Model,
    packed: &Packed,
    options: PassOptions,
    sums: GradientSums,
    loss: impl FnOnce(&TokenStats) -> (TokenGrads, M),
) -> Result<M> {
    accumulate_gradients(model, packed, options.recompute, sums, |HeadInputs { states, outer, sum }| {
        let states = states.detach().set_requires_grad(true);
        let normed = model.final_norm(outer, &states);
        let inputs = normed.detach();
        let (chunks, stats) = no_grad(|| LogitChunk::all(model, outer, &inputs, &packed.targets, options.temperature));
        let (token_grads, metrics) = loss(&stats);
        let head = HeadBackward { outer, sum };
        let grad = no_grad(|| {
            // From the last chunk on, whose logits are still there.
            let chunks = chunks.into_iter().rev().map(|chunk| head.through_logits(chunk, &inputs, &token_grads));
            let mut grads: Vec<Tensor> = chunks.collect();
            grads.reverse();
            Tensor::cat(&grads, 0)
        });
        (head.through_norm(&normed, &grad, &states), metrics)
    })
}

/// Some of the states that are read, and the statistics of their logits.
struct LogitChunk {
    start: i64,
    rows: i64,
    softmax: Softmax,
    /// (rows, V), where they were kept.
    logits: Option<Tensor>,
}

impl LogitChunk {
    /// All chunks of normed states (N, E) with their targets, the last one with its logits, and the statistics.
    fn all(
        model: &Model,
        outer: &OuterWeights,
        states: &Tensor,
        targets: &Tensor,
        temperature: f64,
    ) -> (Vec<Self>, TokenStats) {
        let row_bytes = model.config.vocab_size * model.kind().elt_size_in_bytes() as i64;
        let (n, most) = (states.size()[0], (CHUNK_BYTES / row_bytes).max(1));
        let mut chunks: Vec<Self> = Vec::new();
        for start in (0..n).step_by(most as usize) {
            if let Some(before) = chunks.last_mut() {
                before.logits = None;
            }
            let rows = most.min(n - start);
            let logits = logits(outer, &states.narrow(0, start, rows));
            let softmax = Softmax::new(&logits, &targets.narrow(0, start, rows), temperature);
            chunks.push(Self { start, rows, softmax, logits: Some(logits) });
        }
        let cat = |pick: fn(&Softmax) -> Tensor| {
            let all: Vec<Tensor> = chunks.iter().map(|chunk| pick(&chunk.softmax)).collect();
            Tensor::cat(&all, 0)
        };
        let stats = TokenStats { logprobs: cat(Softmax::logprobs), entropy: cat(Softmax::entropy) };
        (chunks, stats)
    }
}

/// Logits (n, V) of normed states (n, E), in the compute type.
fn logits(outer: &OuterWeights, states: &Tensor) -> Tensor {
    states.linear(&outer.head.weight, outer.head.bias.as_ref())
}

/// Backward pass of the head and the final norm.
struct HeadBackward<'a> {
    outer: &'a OuterWeights,
    /// Gradient sums of the first unit, where that is trained.
    sum: Option<OuterWeights>,
}

impl HeadBackward<'_> {
    /// Back-propagates token gradients through one chunk of the logits of `states`: adds the head's gradient to the sum
    /// and returns that of the chunk's states.
    fn through_logits(&self, chunk: LogitChunk, states: &Tensor, token_grads: &TokenGrads) -> Tensor {
        let rows = |x: &Tensor| x.narrow(0, chunk.start, chunk.rows);
        let states = rows(states);
        let mut logits = chunk.logits.unwrap_or_else(|| logits(self.outer, &states));
        let token_grads =
            TokenGrads { logprobs: rows(&token_grads.logprobs), entropy: token_grads.entropy.as_ref().map(rows) };
        chunk.softmax.backward(&mut logits, &token_grads);
        if let Some(sum) = &self.sum {
            let mut sum = sum.head.weight.shallow_clone();
            if fused::has_products(sum.device()) {
                fused::add_product(&mut sum, &logits, &states);
            } else {
                let _ = sum.g_add_(&logits.tr().matmul(&states));
            }
        }
        logits.matmul(&self.outer.head.weight)
    }

    /// Back-propagates `grad` through the final norm from `normed` to `states`.
    fn through_norm(&self, normed: &Tensor, grad: &Tensor, states: &Tensor) -> Tensor {
        let mut sources = vec![states];
        if self.sum.is_some() {
            sources.push(&self.outer.norm);
        }
        let mut gradients = fused::gradients(normed, grad, &sources);
        if let Some(sum) = &self.sum {
            let _ = no_grad(|| sum.norm.shallow_clone().g_add_(&gradients[1]));
        }
        gradients.swap_remove(0)
    }
}

/// Statistics of logits (n, V), with what their gradient needs.
#[derive(Debug)]
enum Softmax {
    /// On a CPU, one pass over the logits.
    Fused(FusedSoftmax),
    /// On any device, by libtorch's own operations.
    Composite(CompositeSoftmax),
}

#[derive(Debug)]
struct CompositeSoftmax {
    logprobs: Tensor,
    entropy: Tensor,
    /// Log of the sum of exp(logits / temperature), (n, 1).
    log_sum: Tensor,
    /// (n, 1).
    targets: Tensor,
    temperature: f64,
}

impl Softmax {
    /// Statistics of logits (n, V) at targets (n).
    fn new(logits: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        if fused::takes(logits) {
            Self::Fused(FusedSoftmax::new(logits, targets, temperature))
        } else {
            Self::Composite(CompositeSoftmax::new(logits, targets, temperature))
        }
    }

    /// Log-probs of the targets, float32 (n).
    fn logprobs(&self) -> Tensor {
        match self {
            Self::Fused(fused) => fused.logprobs.shallow_clone(),
            Self::Composite(composite) => composite.logprobs.shallow_clone(),
        }
    }

    /// Entropies, float32 (n).
    fn entropy(&self) -> Tensor {
        match self {
            Self::Fused(fused) => fused.entropy(),
            Self::Composite(composite) => composite.entropy.shallow_clone(),
        }
    }

    /// Turns the logits, in place, into the loss's gradient with respect to them.
    fn backward(&self, logits: &mut Tensor, grads: &TokenGrads) {
        match self {
            Self::Fused(fused) => fused.backward(logits, &grads.logprobs, grads.entropy.as_ref()),
            Self::Composite(composite) => composite.backward(logits, grads),
        }
    }
}

impl CompositeSoftmax {
    fn new(logits: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        let targets = targets.unsqueeze(-1);
        let (mut logprobs, mut entropy, mut log_sum) = (Vec::new(), Vec::new(), Vec::new());
        for (start, n) in pieces(logits) {
            let z = logits.narrow(0, start, n).to_kind(Kind::Float) / temperature;
            let sum = z.logsumexp(&[-1i64][..], true);
            let all = z - &sum; // log-probs of the whole vocabulary
            logprobs.push(all.gather(-1, &targets.narrow(0, start, n), false).squeeze_dim(-1));
            entropy.push(-(all.exp() * &all).sum_dim_intlist(&[-1i64][..], false, Kind::Float));
            log_sum.push(sum);
        }
        let cat = |pieces: Vec<Tensor>| Tensor::cat(&pieces, 0);
        Self { logprobs: cat(logprobs), entropy: cat(entropy), log_sum: cat(log_sum), targets, temperature }
    }

    fn backward(&self, logits: &mut Tensor, grads: &TokenGrads) {
        for (start, n) in pieces(logits) {
            let column = |x: &Tensor| x.narrow(0, start, n).unsqueeze(-1);
            let mut piece = logits.narrow(0, start, n);
            let all = piece.to_kind(Kind::Float) / self.temperature - self.log_sum.narrow(0, start, n);
            let by_logprob = column(&grads.logprobs);
            let mut gradient = all.exp() * -&by_logprob;
            if let Some(by_entropy) = &grads.entropy {
                gradient -= all.exp() * (all + column(&self.entropy)) * column(by_entropy);
            }
            let gradient = gradient.scatter_add(-1, &self.targets.narrow(0, start, n), &by_logprob) / self.temperature;
            piece.copy_(&gradient);
        }
    }
}

/// First row and number of rows of pieces of logits that bound the float32 memory; one empty piece where there is none.
fn pieces(logits: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let (rows, vocabulary) = logits.size2().unwrap_or_else(|_| unreachable!("logits have two dimensions"));
    let step = (PIECE_ELEMENTS / vocabulary).max(1);
    (0..rows.max(1)).step_by(step as usize).map(move |start| (start, step.min(rows - start)))
}
