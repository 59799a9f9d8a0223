//! What stands on the states that are read: log-probs and entropies of response tokens, in chunks, so that logits of the
//! whole batch never exist; or a critic's values.

use anyhow::Result;
use nestor_torch::fused;
use tch::{Kind, Tensor, no_grad};

use super::packed::Packed;
use super::pass::{HeadInputs, accumulate_gradients, states};
use super::softmax::Softmax;
use crate::model::Model;
use crate::model::qwen2::OuterWeights;
use crate::recipe::Recompute;
use crate::shard::GradientSums;

/// Logits in memory at once. Where those of all states fit they are computed once, and stay until the loss's gradient
/// takes their place; else the backward pass computes each chunk again.
pub const CHUNK_BYTES: i64 = 512 << 20;

/// Log-prob and entropy of the response tokens, float32 (R) each.
#[derive(Debug)]
pub struct TokenStats {
    /// Log-probs at the sampling temperature.
    pub logprobs: Tensor,
    /// Entropies of the distributions they come from.
    pub entropy: Tensor,
}

/// A loss differentiated with respect to the token statistics.
#[derive(Debug)]
pub struct TokenGrads {
    /// d loss / d log-prob, (R).
    pub logprobs: Tensor,
    /// d loss / d entropy, (R); absent where the loss has no entropy term.
    pub entropy: Option<Tensor>,
}

/// How a pass is run.
#[derive(Debug, Clone, Copy)]
pub struct PassOptions {
    /// Logits are divided by it.
    pub temperature: f64,
    /// Which blocks the backward pass computes again.
    pub recompute: Recompute,
}

/// Log-probs and entropies of the response tokens, without gradients.
pub fn token_stats(model: &Model, packed: &Packed, temperature: f64) -> Result<TokenStats> {
    let mut reader = model.reader();
    let states = states(model, packed, &mut reader)?;
    no_grad(|| {
        let outer = model.outer_weights(&mut reader, false)?;
        let states = model.final_norm(&outer, &states);
        Ok(Chunk::all(model, &outer, &states, &packed.targets, temperature).1)
    })
}

/// Forward and backward pass of one micro-batch under a loss of its response tokens: adds the gradient to `sums`. `loss`
/// gets the token statistics and gives its gradient with respect to them.
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
        let (chunks, stats) = no_grad(|| Chunk::all(model, outer, &inputs, &packed.targets, options.temperature));
        let (token_grads, metrics) = loss(&stats);
        let mut grads = GradientsOfHead { model, outer, sum };
        let grad = no_grad(|| {
            let parts = chunks.into_iter().rev().map(|chunk| grads.of_chunk(chunk, &inputs, &token_grads));
            let mut parts: Vec<Tensor> = parts.collect();
            parts.reverse();
            Tensor::cat(&parts, 0)
        });
        (grads.of_norm(&normed, &grad, &states), metrics)
    })
}

/// A critic's values of the states (N), float32, without gradients.
pub fn values(critic: &Model, packed: &Packed) -> Result<Tensor> {
    let mut reader = critic.reader();
    let states = states(critic, packed, &mut reader)?;
    no_grad(|| Ok(value_head(critic, &critic.outer_weights(&mut reader, false)?, &states)))
}

/// Forward and backward pass of one micro-batch under a loss of its values (N): adds the gradient to `sums`.
pub fn value_gradients<M>(
    critic: &Model,
    packed: &Packed,
    recompute: Recompute,
    sums: GradientSums,
    loss: impl FnOnce(&Tensor) -> (Tensor, M),
) -> Result<M> {
    accumulate_gradients(critic, packed, recompute, sums, |HeadInputs { states, outer, sum }| {
        let states = states.detach().set_requires_grad(true);
        let (loss, metrics) = loss(&value_head(critic, outer, &states));
        (backward(critic, outer, &states, &loss, sum), metrics)
    })
}

fn value_head(critic: &Model, outer: &OuterWeights, states: &Tensor) -> Tensor {
    critic.head(outer, states).squeeze_dim(-1).to_kind(Kind::Float)
}

/// Some of the states that are read, and what is known of their logits.
struct Chunk {
    start: i64,
    rows: i64,
    softmax: Softmax,
    /// (rows, V), where they were kept.
    logits: Option<Tensor>,
}

impl Chunk {
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
            let parts: Vec<Tensor> = chunks.iter().map(|chunk| pick(&chunk.softmax)).collect();
            Tensor::cat(&parts, 0)
        };
        let stats = TokenStats { logprobs: cat(Softmax::logprobs), entropy: cat(Softmax::entropy) };
        (chunks, stats)
    }
}

/// Logits (n, V) of normed states (n, E), in the compute type.
fn logits(outer: &OuterWeights, states: &Tensor) -> Tensor {
    let (head, bias) = outer.head();
    states.linear(head, bias)
}

/// Where the head's gradient goes.
struct GradientsOfHead<'a> {
    model: &'a Model,
    outer: &'a OuterWeights,
    /// The first unit's sum, if that is trained.
    sum: Option<&'a mut Tensor>,
}

impl GradientsOfHead<'_> {
    /// Back-propagates token gradients through one chunk of the logits of `states`: adds the head's gradient to the sum
    /// and gives that of the chunk's states.
    fn of_chunk(&mut self, chunk: Chunk, states: &Tensor, token_grads: &TokenGrads) -> Tensor {
        let rows = |x: &Tensor| x.narrow(0, chunk.start, chunk.rows);
        let states = rows(states);
        let mut logits = chunk.logits.unwrap_or_else(|| logits(self.outer, &states));
        let token_grads =
            TokenGrads { logprobs: rows(&token_grads.logprobs), entropy: token_grads.entropy.as_ref().map(rows) };
        chunk.softmax.backward(&mut logits, &token_grads);
        let (head, _) = self.outer.head();
        if let Some(sum) = &mut self.sum {
            let layout = &self.model.layouts[0];
            let mut sum = layout.view(sum, &layout.params[self.outer.head_indices()[1]]);
            if fused::has_products(sum.device()) {
                fused::add_product(&mut sum, &logits, &states);
            } else {
                let _ = sum.g_add_(&logits.tr().matmul(&states));
            }
        }
        logits.matmul(head)
    }

    /// Back-propagates `grad` through the final norm from `normed` to `states`.
    fn of_norm(&mut self, normed: &Tensor, grad: &Tensor, states: &Tensor) -> Tensor {
        let norm = self.outer.head_indices()[0];
        let mut sources = vec![states];
        if self.sum.is_some() {
            sources.push(&self.outer.tensors()[norm]);
        }
        let mut gradients = fused::gradients(normed, grad, &sources);
        if self.sum.is_some() {
            self.add(norm, &gradients[1]);
        }
        gradients.swap_remove(0)
    }

    fn add(&mut self, index: usize, gradient: &Tensor) {
        if let Some(sum) = &mut self.sum {
            let layout = &self.model.layouts[0];
            let _ = no_grad(|| layout.view(sum, &layout.params[index]).g_add_(gradient));
        }
    }
}

/// Differentiates an objective of the head: adds the gradient of the final norm and of the head to the first unit's sum,
/// if there is one, and gives that of the states.
fn backward(
    model: &Model,
    outer: &OuterWeights,
    states: &Tensor,
    objective: &Tensor,
    sum: Option<&mut Tensor>,
) -> Tensor {
    let own = if sum.is_some() { outer.head_indices() } else { Vec::new() };
    let mut sources = vec![states];
    sources.extend(own.iter().map(|&index| &outer.tensors()[index]));
    let mut gradients = Tensor::run_backward(&[objective], &sources, false, false);
    if let Some(sum) = sum {
        no_grad(|| {
            for (&index, gradient) in own.iter().zip(&gradients[1..]) {
                let param = &model.layouts[0].params[index];
                let _ = model.layouts[0].view(sum, param).g_add_(gradient);
            }
        });
    }
    gradients.swap_remove(0)
}
