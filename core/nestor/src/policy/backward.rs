//! Forward and backward passes over packed sequences, block by block.
//!
//! The forward pass runs without gradients and keeps each block's input; the head runs only on the states that are read.
//! The backward pass walks the blocks in reverse: it computes a block again with gradients on a detached input, and passes
//! it the gradient that came from above. That is activation checkpointing, written as a loop. The block's last product is
//! not computed again: its gradient needs no values of it. Blocks whose activations fit into memory keep their graph instead
//! ([`blocks_to_recompute`]).
//!
//! With sharded weights a unit is all-gathered before use, while the unit before it computes, and freed after use; that is
//! FSDP's schedule. Collectives take all ranks, so a rank that has no micro-batch left takes part in them too
//! ([`idle_forward`], [`idle_backward`]).

use anyhow::Result;
use tch::{Kind, Tensor, no_grad};

use super::packing::Packed;
use super::recompute::blocks_to_recompute;
use super::vision::VisionPass;
use crate::model::Model;
use crate::model::decoder::{BlockInput, ForwardInput, WeightSource};
use crate::model::images::TowerSource;
use crate::model::linear::Tape;
use crate::model::unit_weights::{BlockWeights, OuterWeights};
use crate::recipe::Recompute;
use crate::shard::{GradientSums, UnitReader};

/// One block between its forward and its backward pass.
enum SavedBlock {
    /// The input (T, E): the block is computed again.
    Input(Tensor),
    Graph(Box<BlockGraph>),
}

/// A block's output, with the leaves that it was computed from.
struct BlockGraph {
    /// (T, E).
    input: Tensor,
    weights: BlockWeights,
    tape: Tape,
    output: Tensor,
}

impl BlockGraph {
    /// Adds the gradients of the block's weights to its sum, given the gradient of its output. Returns that of its input.
    fn backward(self, model: &Model, layer: usize, grad: &Tensor, sums: &mut GradientSums) -> Result<Tensor> {
        let Self { input, weights, tape, output } = self;
        let (input, gradients) = tape.backward(output, grad, &input);
        let sum = sums.unit(1 + layer);
        no_grad(|| match &model.adapters {
            None => {
                let places = BlockWeights::new(&model.config, &sum.flat, false);
                BlockWeights::add_gradients(&places, &gradients, model.ops, sum.first);
            }
            Some(adapters) => {
                let places = adapters.views(layer, &sum.flat);
                weights.add_adapter_gradients(&places, &gradients, model.ops, sum.first);
            }
        });
        sums.reduce(1 + layer, sum)?;
        Ok(input)
    }
}

/// The states that are read (N, E), before the final norm and without gradients. Prefetches the first unit.
pub fn states(model: &Model, packed: &Packed, reader: &mut UnitReader) -> Result<Tensor> {
    let embeddings = model.joined_embeddings(packed.shown(), TowerSource::Read(reader))?;
    let rope = model.rope(&packed.packing.positions);
    let (images, read) = (packed.images.as_ref().zip(embeddings.as_ref()), Some(&packed.predictors));
    let input = ForwardInput {
        tokens: &packed.tokens,
        images,
        rope: &rope,
        decodes: false,
        keys: packed.packing.sequences.keys.as_ref(),
        read,
    };
    let attend = |_, q: &Tensor, k: &Tensor, v: &Tensor| model.ops.attend([q, k, v], &packed.packing.sequences);
    no_grad(|| model.forward(WeightSource::Read(reader), &input, attend))
}

/// Inputs of a head in [`accumulate_gradients`].
pub struct HeadInputs<'a> {
    /// The states that are read (N, E), without gradients.
    pub states: &'a Tensor,
    /// Final norm and head; leaves that require gradients where they are trained.
    pub outer: &'a OuterWeights,
    /// Gradient sums of the same weights, to be added to; none where they are not trained.
    pub sum: Option<OuterWeights>,
}

/// Forward and backward pass of one micro-batch: adds the gradient to `sums`. `head` adds the gradient of its own weights
/// and returns that of the states (N, E).
pub fn accumulate_gradients<M>(
    model: &Model,
    packed: &Packed,
    recompute: Recompute,
    mut sums: GradientSums,
    head: impl FnOnce(HeadInputs) -> (Tensor, M),
) -> Result<M> {
    let mut reader = model.reader();
    let rope = model.rope(&packed.packing.positions);
    let again = blocks_to_recompute(model, Some(packed), recompute);
    // The last block computes only the states that are read.
    let block = |layer: usize, weights: &BlockWeights, x: &Tensor, tape: &mut Tape| {
        let read = (layer + 1 == model.blocks()).then_some(&packed.predictors);
        let input = BlockInput { x, rope: &rope, decodes: false, keys: packed.packing.sequences.keys.as_ref(), read };
        model.block(weights, input, tape, |q, k, v| model.ops.attend([q, k, v], &packed.packing.sequences))
    };
    let graph = |layer: usize, weights: BlockWeights, x: &Tensor, mut tape: Tape| {
        let input = x.detach().set_requires_grad(true);
        let output = block(layer, &weights, &input, &mut tape);
        BlockGraph { input, weights, tape, output }
    };
    let trains_norms = sums.trains_outer();

    let vision = VisionPass::forward(model, packed.shown(), &mut reader, recompute)?;
    let outer = model.outer_weights(&mut reader, false)?;
    let mut x = no_grad(|| {
        let x = model.embed(&outer, &packed.tokens);
        match packed.images.as_ref().zip(vision.embeddings.as_ref()) {
            Some((rows, embeddings)) => rows.put(&x, embeddings),
            None => x,
        }
    });
    drop(outer);
    let mut saved = Vec::with_capacity(model.blocks());
    for layer in 0..model.blocks() {
        let weights = model.block_weights(&mut reader, layer, layer >= again && trains_norms)?;
        reader.prefetch(model.unit_after(layer))?;
        if layer < again {
            let output = no_grad(|| block(layer, &weights, &x, &mut Tape::off()));
            saved.push(SavedBlock::Input(std::mem::replace(&mut x, output)));
        } else {
            let graph = graph(layer, weights, &x, Tape::on());
            x = graph.output.detach();
            saved.push(SavedBlock::Graph(Box::new(graph)));
        }
    }

    let outer = model.outer_weights(&mut reader, sums.trains_outer())?;
    if let Some(last) = again.checked_sub(1).filter(|last| last + 1 == model.blocks()) {
        reader.prefetch(1 + last)?;
    }
    let sum = sums.outer().map(|flat| OuterWeights::new(&model.config, flat, false));
    let (mut grad, metrics) = head(HeadInputs { states: &x, outer: &outer, sum });
    drop((outer, x)); // the gradient is (N, E), from the last block's input on (T, E)

    for (layer, saved) in saved.into_iter().enumerate().rev() {
        let graph = match saved {
            SavedBlock::Graph(graph) => {
                if layer == again && again > 0 {
                    reader.prefetch(again)?; // the unit of the first block that is computed again
                }
                *graph
            }
            SavedBlock::Input(x) => {
                let weights = model.block_weights(&mut reader, layer, trains_norms)?;
                if layer > 0 {
                    reader.prefetch(layer)?; // the unit of the block before
                }
                graph(layer, weights, &x, Tape::again())
            }
        };
        grad = graph.backward(model, layer, &grad, &mut sums)?;
    }
    let of_images = no_grad(|| {
        let (rows, embeddings) = packed.images.as_ref().zip(vision.embeddings.as_ref())?;
        let of_images = rows.take_gradient(&mut grad, embeddings);
        Some(of_images)
    });
    if let Some(flat) = sums.outer() {
        no_grad(|| {
            let mut embedding = OuterWeights::new(&model.config, flat, false).embedding;
            let _ = embedding.index_add_(0, &packed.tokens, &grad.to_kind(Kind::Float));
        });
    }
    vision.backward(model, of_images, &mut reader, &mut sums)?;
    sums.finish()?;
    Ok(metrics)
}

/// Takes part in the collectives of [`states`] and a head, for a rank without a micro-batch.
pub fn idle_forward(model: &Model) -> Result<()> {
    let mut reader = model.reader();
    model.joined_embeddings(&[], TowerSource::Read(&mut reader))?;
    read_all(model, &mut reader)
}

/// Reads the units of a language model's pass.
fn read_all(model: &Model, reader: &mut UnitReader) -> Result<()> {
    // In the order that the pass asks for them: the first unit, each block, the first unit again.
    for unit in (0..=model.blocks()).chain([0]) {
        drop(reader.unit(unit)?);
    }
    Ok(())
}

/// Takes part in the collectives of [`accumulate_gradients`], for a rank without a micro-batch.
pub fn idle_backward(model: &Model, recompute: Recompute, mut sums: GradientSums) -> Result<()> {
    let mut reader = model.reader();
    let vision = VisionPass::forward(model, &[], &mut reader, recompute)?;
    read_all(model, &mut reader)?;
    let again = blocks_to_recompute(model, None, recompute);
    if again == model.blocks() {
        reader.prefetch(again)?;
    }
    for layer in (0..model.blocks()).rev() {
        if layer < again {
            drop(reader.unit(1 + layer)?);
        }
        if (1..=again).contains(&layer) {
            reader.prefetch(layer)?;
        }
        sums.add_nothing(1 + layer)?;
    }
    vision.backward(model, None, &mut reader, &mut sums)?;
    sums.finish()
}
