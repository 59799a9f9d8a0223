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
use nestor_torch::fused::FusedSoftmax;
use nestor_torch::head::HeadStatistics;
use nestor_torch::ops::Ops;
use tch::{Kind, Tensor, no_grad};

use super::backward::{HeadInputs, accumulate_gradients, states};
use super::packing::Packed;
use super::recompute::{CHUNK_BYTES, PIECE_ELEMENTS};
use crate::model::Model;
use crate::model::linear::Tape;
use crate::model::unit_weights::OuterWeights;
use crate::recipe::Recompute;
use crate::shard::{GradientSums, UnitReader};

/// Log-prob and entropy of the response tokens, float32 (R) each.
#[derive(Debug)]
pub struct TokenStats {
    /// Log-probs at the sampling temperature.
    pub logprobs: Tensor,
    /// Entropies of the distributions they come from.
    pub entropy: Tensor,
}

impl TokenStats {
    /// Those of the response tokens, from those of the computed states.
    fn read(&self, packed: &Packed) -> Self {
        Self { logprobs: packed.read(&self.logprobs), entropy: packed.read(&self.entropy) }
    }
}

/// Gradient of a loss with respect to the token statistics.
#[derive(Debug)]
pub struct TokenGrads {
    /// d loss / d log-prob, (R).
    pub logprobs: Tensor,
    /// d loss / d entropy, (R); absent where the loss has no entropy term.
    pub entropy: Option<Tensor>,
}

impl TokenGrads {
    /// With respect to those of the computed states.
    fn read_backward(self, packed: &Packed) -> Self {
        let sum = |grad: &Tensor| packed.read_backward(grad);
        Self { logprobs: sum(&self.logprobs), entropy: self.entropy.as_ref().map(sum) }
    }

    fn scale(self, factor: f64) -> Self {
        if factor == 1.0 {
            return self;
        }
        Self { logprobs: self.logprobs * factor, entropy: self.entropy.map(|entropy| entropy * factor) }
    }
}

/// Options of a forward and backward pass.
#[derive(Debug, Clone, Copy)]
pub struct PassOptions {
    /// Logits are divided by it.
    pub temperature: f64,
    /// Selects the blocks that the backward pass computes again.
    pub recompute: Recompute,
    /// The gradients are multiplied by it.
    pub loss_factor: f64,
}

/// Log-probs and entropies of the response tokens, without gradients.
pub fn token_stats(model: &Model, packed: &Packed, temperature: f64) -> Result<TokenStats> {
    let mut reader = model.reader();
    let states = states(model, packed, &mut reader)?;
    stats_of_states(model, &mut reader, &states, packed, temperature)
}

/// The same from the computed states (U, E), before the final norm.
pub fn stats_of_states(
    model: &Model,
    reader: &mut UnitReader,
    states: &Tensor,
    packed: &Packed,
    temperature: f64,
) -> Result<TokenStats> {
    no_grad(|| {
        let outer = model.outer_weights(reader, false)?;
        let states = model.final_norm(&outer, states, &mut Tape::off());
        Ok(LogitChunk::all(model, &outer, &states, &packed.targets, temperature).1.read(packed))
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
        let mut tape = Tape::on();
        let normed = model.final_norm(outer, &states, &mut tape);
        let inputs = normed.detach();
        let (chunks, stats) = no_grad(|| LogitChunk::all(model, outer, &inputs, &packed.targets, options.temperature));
        let (token_grads, metrics) = loss(&stats.read(packed));
        let token_grads = no_grad(|| token_grads.read_backward(packed).scale(options.loss_factor));
        let head = HeadBackward { outer, sum, ops: model.ops };
        let grad = no_grad(|| {
            // From the last chunk on, whose logits are still there.
            let chunks = chunks.into_iter().rev().map(|chunk| head.through_logits(chunk, &inputs, &token_grads));
            let mut grads: Vec<Tensor> = chunks.collect();
            grads.reverse();
            Tensor::cat(&grads, 0)
        });
        let (grad, gradients) = tape.backward(normed, &grad, &states);
        if let Some(sum) = &head.sum {
            no_grad(|| model.ops.add_gradient(&sum.norm, &gradients.norms[0], false));
        }
        (grad, metrics)
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
            let softmax = Softmax::new(model.ops, &logits, &targets.narrow(0, start, rows), temperature);
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

/// Backward pass of the head.
struct HeadBackward<'a> {
    outer: &'a OuterWeights,
    /// Gradient sums of the first unit, where that is trained.
    sum: Option<OuterWeights>,
    ops: Ops,
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
            self.ops.add_product(&sum.head.weight, &logits, &states, false);
        }
        logits.matmul(&self.outer.head.weight)
    }
}

/// Statistics of logits (n, V), with what their gradient needs.
#[derive(Debug)]
enum Softmax {
    /// One reading of the logits on a CPU.
    Fused(FusedSoftmax),
    /// One reading of the logits by this program's kernels.
    Kernel(HeadStatistics),
    /// By libtorch's own operations.
    Generic(GenericSoftmax),
}

#[derive(Debug)]
struct GenericSoftmax {
    logprobs: Tensor,
    entropy: Tensor,
    /// (n, 1).
    targets: Tensor,
    temperature: f64,
}

impl Softmax {
    /// Statistics of logits (n, V) at targets (n).
    fn new(ops: Ops, logits: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        match ops {
            Ops::Fused => Self::Fused(FusedSoftmax::new(logits, targets, temperature)),
            Ops::Generic => match HeadStatistics::new(logits, targets, temperature) {
                Some(statistics) => Self::Kernel(statistics),
                None => Self::Generic(GenericSoftmax::new(logits, targets, temperature)),
            },
        }
    }

    /// Log-probs of the targets, float32 (n).
    fn logprobs(&self) -> Tensor {
        match self {
            Self::Fused(fused) => fused.logprobs.shallow_clone(),
            Self::Kernel(kernel) => kernel.logprobs.shallow_clone(),
            Self::Generic(generic) => generic.logprobs.shallow_clone(),
        }
    }

    /// Entropies, float32 (n).
    fn entropy(&self) -> Tensor {
        match self {
            Self::Fused(fused) => fused.entropy(),
            Self::Kernel(kernel) => kernel.entropy(),
            Self::Generic(generic) => generic.entropy.shallow_clone(),
        }
    }

    /// Turns the logits, in place, into the loss's gradient with respect to them.
    fn backward(&self, logits: &mut Tensor, grads: &TokenGrads) {
        match self {
            Self::Fused(fused) => fused.backward(logits, &grads.logprobs, grads.entropy.as_ref()),
            Self::Kernel(kernel) => kernel.backward(logits, &grads.logprobs, grads.entropy.as_ref()),
            Self::Generic(generic) => generic.backward(logits, grads),
        }
    }
}

impl GenericSoftmax {
    /// A product of rows sums p log p. The log of the sum is `logsumexp`'s: libtorch's `log_softmax` on a CPU sums a large
    /// vocabulary in float32 lane by lane, which biases every log-prob upwards by up to 2e-5.
    fn new(logits: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        let targets = targets.unsqueeze(-1);
        let (mut logprobs, mut entropy) = (Vec::new(), Vec::new());
        for (start, n) in pieces(logits) {
            let z = scaled(&logits.narrow(0, start, n), temperature);
            let wide = z.to_kind(Kind::Float);
            let all = &wide - wide.logsumexp(-1, true); // log-probs of the whole vocabulary
            logprobs.push(all.gather(-1, &targets.narrow(0, start, n), false).squeeze_dim(-1));
            let p = z.softmax(-1, Kind::Float);
            entropy.push(-p.unsqueeze(1).bmm(&all.unsqueeze(2)).view([n]));
        }
        let cat = |pieces: Vec<Tensor>| Tensor::cat(&pieces, 0);
        Self { logprobs: cat(logprobs), entropy: cat(entropy), targets, temperature }
    }

    /// Two passes, or four with entropies.
    fn backward(&self, logits: &mut Tensor, grads: &TokenGrads) {
        for (start, n) in pieces(logits) {
            let column = |x: &Tensor| x.narrow(0, start, n).unsqueeze(-1);
            let mut piece = logits.narrow(0, start, n);
            let z = scaled(&piece, self.temperature);
            let p = z.softmax(-1, Kind::Float);
            let (by_logprob, logprobs) = (column(&grads.logprobs), column(&self.logprobs));
            // The target's entry in float32, with its 1: the rounded entry would lose most of its digits.
            let mut target: Tensor = &by_logprob * (1.0 - logprobs.exp());
            let factor = match &grads.entropy {
                None => -by_logprob / self.temperature,
                Some(by_entropy) => {
                    let (by_entropy, entropy) = (column(by_entropy), column(&self.entropy));
                    target -= logprobs.exp() * (&logprobs + &entropy) * &by_entropy;
                    let rest = (by_logprob + &by_entropy * entropy) / -self.temperature;
                    rest.addcmul(&z.log_softmax(-1, Kind::Float), &(by_entropy / -self.temperature))
                }
            };
            let _ = p.f_mul_out(&piece, &factor).unwrap_or_else(|error| panic!("{error}"));
            let target = (target / self.temperature).to_kind(piece.kind());
            let _ = piece.scatter_(-1, &self.targets.narrow(0, start, n), &target);
        }
    }
}

/// Logits over the temperature: as they are where it is 1, else in float32.
fn scaled(logits: &Tensor, temperature: f64) -> Tensor {
    if temperature == 1.0 { logits.shallow_clone() } else { logits.to_kind(Kind::Float) / temperature }
}

/// First row and number of rows of pieces of logits that bound the float32 memory; one empty piece where there is none.
fn pieces(logits: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let (rows, vocabulary) = logits.size2().unwrap_or_else(|_| unreachable!("logits have two dimensions"));
    let step = (PIECE_ELEMENTS / vocabulary).max(1);
    (0..rows.max(1)).step_by(step as usize).map(move |start| (start, step.min(rows - start)))
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// Against log-softmax in float64 by libtorch. Its own float32 form has a bias of 5e-6 here.
    #[test]
    fn log_probs_over_a_large_vocabulary_have_no_bias() {
        tch::manual_seed(1);
        let logits = Tensor::randn([16, 151_936], (Kind::Float, Device::Cpu)) * 3.0;
        let targets = Tensor::arange(16, (Kind::Int64, Device::Cpu)) * 9_000;
        let logits = logits.scatter_value_reduce(-1, &targets.unsqueeze(-1), 10.0, "add");
        let want = logits.log_softmax(-1, Kind::Double).gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1);
        for ops in [Ops::Fused, Ops::Generic] {
            let error = Softmax::new(ops, &logits, &targets, 1.0).logprobs() - &want;
            let bias = error.mean(Kind::Double).double_value(&[]);
            assert!(bias.abs() < 1e-6, "{ops:?}: the mean error is {bias:e}");
        }
    }
}
