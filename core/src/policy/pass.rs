//! Forward and backward passes over packed sequences, block by block.
//!
//! The forward pass runs without gradients and keeps each block's input; the head runs only on the states that predict
//! response tokens, in chunks, so that logits of the whole batch never exist. The backward pass walks the blocks in
//! reverse: it computes a block again with gradients on a detached input and differentiates `(y * g).sum()`, where `g`
//! is the gradient that came from above. That is activation checkpointing, written as a loop.

use tch::{Kind, Tensor, no_grad};

use super::packed::Packed;
use crate::model::qwen2::{BlockWeights, OuterWeights};
use crate::model::{Model, Rope};
use crate::recipe::Recompute;

/// Logit entries of one head chunk: bounds the memory of float32 logits to 128 MiB a copy.
const CHUNK_ELEMENTS: i64 = 1 << 25;

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

/// What the backward pass needs of one block.
enum Saved {
    /// The input: the block is computed again.
    Input(Tensor),
    /// The whole graph.
    Graph { input: Tensor, weights: BlockWeights, output: Tensor },
}

/// Log-probs and entropies of the response tokens, without gradients.
pub fn token_stats(model: &Model, packed: &Packed, temperature: f64) -> TokenStats {
    no_grad(|| {
        let outer = model.outer_weights(false);
        let rope = model.rope(&packed.packing.positions);
        let mut x = model.embed(&outer, &packed.tokens);
        for layer in 0..model.blocks() {
            x = run_block(model, &model.block_weights(layer, false), &x, &rope, packed);
        }
        head_stats(model, &outer, &x.index_select(0, &packed.predictors), &packed.targets, temperature)
    })
}

/// Forward and backward pass of one micro-batch: adds the gradient of `loss` to `grads` (one flat float32 tensor per
/// unit). `loss` gets the token statistics and gives its gradient with respect to them.
pub fn accumulate_gradients<M>(
    model: &Model,
    packed: &Packed,
    options: PassOptions,
    grads: &mut [Tensor],
    loss: impl FnOnce(&TokenStats) -> (TokenGrads, M),
) -> M {
    let rope = model.rope(&packed.packing.positions);
    let outer = model.outer_weights(false);
    let mut x = no_grad(|| model.embed(&outer, &packed.tokens));
    let mut saved = Vec::with_capacity(model.blocks());
    for layer in 0..model.blocks() {
        if options.recompute.covers(layer) {
            let weights = model.block_weights(layer, false);
            let output = no_grad(|| run_block(model, &weights, &x, &rope, packed));
            saved.push(Saved::Input(std::mem::replace(&mut x, output)));
        } else {
            let weights = model.block_weights(layer, true);
            let input = x.detach().set_requires_grad(true);
            let output = run_block(model, &weights, &input, &rope, packed);
            x = output.detach();
            saved.push(Saved::Graph { input, weights, output });
        }
    }

    let states = x.index_select(0, &packed.predictors); // (R, E)
    let stats = no_grad(|| head_stats(model, &outer, &states, &packed.targets, options.temperature));
    let (token_grads, metrics) = loss(&stats);
    let grad_states = head_backward(model, &states, packed, options.temperature, &token_grads, &mut grads[0]);
    let mut grad = x.zeros_like().index_copy(0, &packed.predictors, &grad_states); // (T, E)

    for (layer, saved) in saved.into_iter().enumerate().rev() {
        let (input, weights, output) = match saved {
            Saved::Graph { input, weights, output } => (input, weights, output),
            Saved::Input(x) => {
                let weights = model.block_weights(layer, true);
                let input = x.set_requires_grad(true);
                let output = run_block(model, &weights, &input, &rope, packed);
                (input, weights, output)
            }
        };
        let mut sources = vec![&input];
        sources.extend(weights.tensors());
        let mut gradients = Tensor::run_backward(&[(output * grad).sum(input.kind())], &sources, false, false);
        let own = gradients.split_off(1);
        add_flat(&mut grads[1 + layer], &own);
        grad = gradients.remove(0);
    }
    no_grad(|| {
        let embedding = outer.tensors()[0].size();
        let mut table = grads[0].narrow(0, 0, embedding.iter().product()).view(&embedding[..]);
        let _ = table.index_add_(0, &packed.tokens, &grad.to_kind(Kind::Float));
    });
    metrics
}

fn run_block(model: &Model, weights: &BlockWeights, x: &Tensor, rope: &Rope, packed: &Packed) -> Tensor {
    model.block(weights, x, rope, |q, k, v| packed.packing.attend(q, k, v))
}

/// Rows of one head chunk.
fn chunk_rows(model: &Model) -> i64 {
    (CHUNK_ELEMENTS / model.config.vocab_size).max(1)
}

/// Statistics of one chunk: states (n, E) and targets (n).
fn chunk_stats(model: &Model, outer: &OuterWeights, states: &Tensor, targets: &Tensor, temperature: f64) -> TokenStats {
    let logits = model.head(outer, states).to_kind(Kind::Float) / temperature;
    let all = logits.log_softmax(-1, Kind::Float); // (n, V)
    let logprobs = all.gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1);
    let entropy = -(all.exp() * &all).sum_dim_intlist(&[-1i64][..], false, Kind::Float);
    TokenStats { logprobs, entropy }
}

fn head_stats(model: &Model, outer: &OuterWeights, states: &Tensor, targets: &Tensor, temperature: f64) -> TokenStats {
    let rows = chunk_rows(model);
    let chunks: Vec<TokenStats> = states
        .split(rows, 0)
        .iter()
        .zip(targets.split(rows, 0))
        .map(|(states, targets)| chunk_stats(model, outer, states, &targets, temperature))
        .collect();
    let cat = |pick: fn(&TokenStats) -> &Tensor| Tensor::cat(&chunks.iter().map(pick).collect::<Vec<_>>(), 0);
    TokenStats { logprobs: cat(|c| &c.logprobs), entropy: cat(|c| &c.entropy) }
}

/// Back-propagates token gradients through the head, chunk by chunk; adds to the first unit's gradient and gives the
/// gradient of the states (R, E).
fn head_backward(
    model: &Model,
    states: &Tensor,
    packed: &Packed,
    temperature: f64,
    token_grads: &TokenGrads,
    grad: &mut Tensor,
) -> Tensor {
    let rows = chunk_rows(model);
    let mut grad_states = Vec::new();
    for start in (0..states.size()[0]).step_by(rows as usize) {
        let n = rows.min(states.size()[0] - start);
        let outer = model.outer_weights(true);
        let states = states.narrow(0, start, n).detach().set_requires_grad(true);
        let stats = chunk_stats(model, &outer, &states, &packed.targets.narrow(0, start, n), temperature);
        let mut objective = (stats.logprobs * token_grads.logprobs.narrow(0, start, n)).sum(Kind::Float);
        if let Some(entropy) = &token_grads.entropy {
            objective += (stats.entropy * entropy.narrow(0, start, n)).sum(Kind::Float);
        }
        let (head, norm) = (outer.head(), outer.norm());
        let gradients = Tensor::run_backward(&[objective], &[&states, norm, head], false, false);
        no_grad(|| {
            for (index, gradient) in [(outer.norm_index(), &gradients[1]), (outer.head_index(), &gradients[2])] {
                let param = &model.layouts[0].params[index];
                let _ = model.layouts[0].view(grad, param).g_add_(gradient);
            }
        });
        grad_states.push(gradients[0].shallow_clone());
    }
    Tensor::cat(&grad_states, 0)
}

/// Adds gradients of consecutive tensors to a flat gradient.
fn add_flat(flat: &mut Tensor, gradients: &[Tensor]) {
    no_grad(|| {
        let mut offset = 0;
        for gradient in gradients {
            let numel = gradient.numel() as i64;
            let _ = flat.narrow(0, offset, numel).g_add_(&gradient.reshape([numel]));
            offset += numel;
        }
    });
}
