//! Forward and backward passes over packed sequences, block by block.
//!
//! The forward pass runs without gradients and keeps each block's input; the head (`head`) runs only on the states that
//! are read. The backward pass walks the blocks in reverse: it computes a block again with gradients on a detached input
//! and hands it the gradient that came from above. That is activation checkpointing, written as a loop. Blocks whose
//! activations have room (`memory`) keep their graph instead.
//!
//! Where weights are spread over ranks, a unit is gathered before it is used, the next one while this one computes, and
//! dropped after; that is FSDP's schedule. Gathering and reducing take all ranks, so one that has no micro-batch left
//! takes its steps too ([`idle_forward`], [`idle_backward`]).

use anyhow::Result;
use nestor_torch::fused;
use tch::{Kind, Tensor, no_grad};

use super::memory::blocks_to_recompute;
use super::packed::Packed;
use crate::model::qwen2::{BlockWeights, OuterWeights};
use crate::model::{Model, Rope};
use crate::recipe::Recompute;
use crate::shard::{GradientSums, Reader};

/// What the backward pass needs of one block.
enum Saved {
    /// The input: the block is computed again.
    Input(Tensor),
    /// The whole graph.
    Graph { input: Tensor, weights: BlockWeights, output: Tensor },
}

/// The states that are read (N, E), before the final norm and without gradients. The first unit is wanted next.
pub fn states(model: &Model, packed: &Packed, reader: &mut Reader) -> Result<Tensor> {
    no_grad(|| {
        let rope = model.rope(&packed.packing.positions);
        let mut x = model.embed(&model.outer_weights(reader, false)?, &packed.tokens);
        for layer in 0..model.blocks() {
            let weights = model.block_weights(reader, layer, false)?;
            reader.prefetch(unit_after(model, layer))?;
            x = run_block(model, &weights, &x, &Rows { rope: &rope, packed, layer });
        }
        Ok(x)
    })
}

/// What a head is given: the states that are read (N, E), the weights outside the blocks (leaves that require gradients
/// where they are trained), and the first unit's gradient where that is trained.
pub struct HeadInputs<'a> {
    /// (N, E), without gradients.
    pub states: &'a Tensor,
    /// Final norm and head.
    pub outer: &'a OuterWeights,
    /// To be added to.
    pub sum: Option<&'a mut Tensor>,
}

/// Forward and backward pass of one micro-batch: adds the gradient to `sums`. `head` adds what is its own to the first
/// unit's gradient, and gives that of the states.
pub fn accumulate_gradients<M>(
    model: &Model,
    packed: &Packed,
    recompute: Recompute,
    mut sums: GradientSums,
    head: impl FnOnce(HeadInputs) -> (Tensor, M),
) -> Result<M> {
    let mut reader = model.reader();
    let rope = model.rope(&packed.packing.positions);
    let again = blocks_to_recompute(model, packed.packing.tokens(), recompute);
    let outer = model.outer_weights(&mut reader, false)?;
    let mut x = no_grad(|| model.embed(&outer, &packed.tokens));
    drop(outer);
    let mut saved = Vec::with_capacity(model.blocks());
    for layer in 0..model.blocks() {
        let rows = Rows { rope: &rope, packed, layer };
        let weights = model.block_weights(&mut reader, layer, layer >= again)?;
        reader.prefetch(unit_after(model, layer))?;
        if layer < again {
            let output = no_grad(|| run_block(model, &weights, &x, &rows));
            saved.push(Saved::Input(std::mem::replace(&mut x, output)));
        } else {
            let input = x.detach().set_requires_grad(true);
            let output = run_block(model, &weights, &input, &rows);
            x = output.detach();
            saved.push(Saved::Graph { input, weights, output });
        }
    }

    let outer = model.outer_weights(&mut reader, sums.trains_outer())?;
    if let Some(last) = again.checked_sub(1).filter(|last| last + 1 == model.blocks()) {
        reader.prefetch(1 + last)?;
    }
    let (mut grad, metrics) = head(HeadInputs { states: &x, outer: &outer, sum: sums.outer() });
    drop((outer, x)); // the gradient is (N, E), from the last block's input on (T, E)

    for (layer, saved) in saved.into_iter().enumerate().rev() {
        let (input, weights, output) = match saved {
            Saved::Graph { input, weights, output } => (input, weights, output),
            Saved::Input(x) => {
                let weights = model.block_weights(&mut reader, layer, true)?;
                if layer > 0 {
                    reader.prefetch(layer)?; // the unit of the block before
                }
                let input = x.set_requires_grad(true);
                let output = run_block(model, &weights, &input, &Rows { rope: &rope, packed, layer });
                (input, weights, output)
            }
        };
        let mut sources = vec![&input];
        sources.extend(weights.tensors());
        let mut gradients = fused::gradients(&output, &grad, &sources);
        let own = gradients.split_off(1);
        drop((weights, output));
        sums.add_block(layer, &own)?;
        grad = gradients.remove(0);
    }
    if let Some(sum) = sums.outer() {
        no_grad(|| {
            let mut table = model.layouts[0].view(sum, &model.layouts[0].params[0]);
            let _ = table.index_add_(0, &packed.tokens, &grad.to_kind(Kind::Float));
        });
    }
    sums.finish()?;
    Ok(metrics)
}

/// What a rank without a micro-batch does while others compute [`states`] and a head.
pub fn idle_forward(model: &Model) -> Result<()> {
    let mut reader = model.reader();
    // In the order that the pass asks for them: the first unit, each block, the first unit again.
    for unit in (0..=model.blocks()).chain([0]) {
        drop(reader.unit(unit)?);
    }
    Ok(())
}

/// What a rank without a micro-batch does while others run [`accumulate_gradients`].
pub fn idle_backward(model: &Model, recompute: Recompute, mut sums: GradientSums) -> Result<()> {
    idle_forward(model)?;
    let again = blocks_to_recompute(model, 0, recompute);
    let mut reader = model.reader();
    if again == model.blocks() {
        reader.prefetch(again)?;
    }
    for layer in (0..model.blocks()).rev() {
        if layer < again {
            drop(reader.unit(1 + layer)?);
            if layer > 0 {
                reader.prefetch(layer)?;
            }
        }
        sums.add_nothing(layer)?;
    }
    sums.finish()
}

/// The unit that a forward pass wants after a block: the next block, or the first unit for the head.
fn unit_after(model: &Model, layer: usize) -> usize {
    if layer + 1 == model.blocks() { 0 } else { layer + 2 }
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
