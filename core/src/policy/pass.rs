//! Forward and backward passes over packed sequences, block by block.
//!
//! The forward pass runs without gradients and keeps each block's input; the head (`head`) runs only on the states that
//! are read. The backward pass walks the blocks in reverse: it computes a block again with gradients on a detached input
//! and hands it the gradient that came from above. That is activation checkpointing, written as a loop. Blocks whose
//! activations have room (`memory`) keep their graph instead.

use nestor_c10d::fused;
use tch::{Kind, Tensor, no_grad};

use super::memory::blocks_to_recompute;
use super::packed::Packed;
use crate::model::qwen2::BlockWeights;
use crate::model::{Model, Rope};
use crate::recipe::Recompute;
use crate::shard::GradientSums;

/// What the backward pass needs of one block.
enum Saved {
    /// The input: the block is computed again.
    Input(Tensor),
    /// The whole graph.
    Graph { input: Tensor, weights: BlockWeights, output: Tensor },
}

/// The states that are read (N, E), before the final norm and without gradients.
pub fn states(model: &Model, packed: &Packed) -> Tensor {
    no_grad(|| {
        let rope = model.rope(&packed.packing.positions);
        let mut x = model.embed(&model.outer_weights(false), &packed.tokens);
        for layer in 0..model.blocks() {
            x = run_block(model, &model.block_weights(layer, false), &x, &Rows { rope: &rope, packed, layer });
        }
        x
    })
}

/// Forward and backward pass of one micro-batch: adds the gradient to `sums`. `head` gets the states that are read (N, E)
/// and the first unit's sum where that is trained, adds to it what is the head's own, and gives the gradient of the
/// states.
pub fn accumulate_gradients<M>(
    model: &Model,
    packed: &Packed,
    recompute: Recompute,
    sums: &mut GradientSums,
    head: impl FnOnce(&Tensor, Option<&mut Tensor>) -> (Tensor, M),
) -> M {
    let rope = model.rope(&packed.packing.positions);
    let again = blocks_to_recompute(model, packed.packing.tokens(), recompute);
    let outer = model.outer_weights(false);
    let mut x = no_grad(|| model.embed(&outer, &packed.tokens));
    let mut saved = Vec::with_capacity(model.blocks());
    for layer in 0..model.blocks() {
        if layer < again {
            let weights = model.block_weights(layer, false);
            let output = no_grad(|| run_block(model, &weights, &x, &Rows { rope: &rope, packed, layer }));
            saved.push(Saved::Input(std::mem::replace(&mut x, output)));
        } else {
            let weights = model.block_weights(layer, true);
            let input = x.detach().set_requires_grad(true);
            let output = run_block(model, &weights, &input, &Rows { rope: &rope, packed, layer });
            x = output.detach();
            saved.push(Saved::Graph { input, weights, output });
        }
    }

    let (mut grad, metrics) = head(&x, sums.outer()); // (N, E), from the last block's input on (T, E)

    for (layer, saved) in saved.into_iter().enumerate().rev() {
        let (input, weights, output) = match saved {
            Saved::Graph { input, weights, output } => (input, weights, output),
            Saved::Input(x) => {
                let weights = model.block_weights(layer, true);
                let input = x.set_requires_grad(true);
                let output = run_block(model, &weights, &input, &Rows { rope: &rope, packed, layer });
                (input, weights, output)
            }
        };
        let mut sources = vec![&input];
        sources.extend(weights.tensors());
        let mut gradients = fused::gradients(&output, &grad, &sources);
        let own = gradients.split_off(1);
        sums.add_block(layer, &own);
        grad = gradients.remove(0);
    }
    if let Some(sum) = sums.outer() {
        no_grad(|| {
            let embedding = outer.tensors()[0].size();
            let mut table = sum.narrow(0, 0, embedding.iter().product()).view(&embedding[..]);
            let _ = table.index_add_(0, &packed.tokens, &grad.to_kind(Kind::Float));
        });
    }
    metrics
}

/// What a block of a pass is told beside its input.
struct Rows<'a> {
    rope: &'a Rope,
    packed: &'a Packed,
    layer: usize,
}

/// One block; the last gives only the states that are read.
fn run_block(model: &Model, weights: &BlockWeights, x: &Tensor, rows: &Rows) -> Tensor {
    let Rows { rope, packed, layer } = *rows;
    let read = (layer + 1 == model.blocks()).then_some(&packed.predictors);
    model.block(weights, x, rope, read, |q, k, v| packed.packing.attend(q, k, v))
}
