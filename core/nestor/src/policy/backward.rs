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
use nestor_torch::ops::Ops;
use nestor_torch::{fused, host};
use tch::{Device, Kind, Tensor, no_grad};

use super::packing::{Packed, Packing};
use super::vision::VisionPass;
use crate::model::decoder::{BlockInput, BlockWeights, ForwardInput, OuterWeights, WeightSource};
use crate::model::images::TowerSource;
use crate::model::linear::Tape;
use crate::model::{Config, Model};
use crate::recipe::Recompute;
use crate::shard::{GradientSums, HeldUnits, UnitReader};

/// Share of a device's free memory that kept activations may take; the rest is for logits, gradients and other needs.
const ACTIVATION_SHARE: f64 = 0.5;

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
    let again = blocks_to_recompute(model, graph_bytes(model, &packed.packing), recompute);
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
            SavedBlock::Graph(graph) => *graph,
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
    let again = blocks_to_recompute(model, 0, recompute);
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
        sums.add_nothing(1 + layer)?;
    }
    vision.backward(model, None, &mut reader, &mut sums)?;
    sums.finish()
}

/// Bytes that the graph of one block keeps for its backward pass. The generic form keeps the keys and values that it gathered
/// for sequences with common beginnings, too.
fn graph_bytes(model: &Model, packing: &Packing) -> u64 {
    let (config, kind) = (&model.config, model.kind());
    let gathered = if model.ops == Ops::Generic { packing.sequences.gathered() } else { 0 };
    let of_keys = 2 * config.num_key_value_heads * config.head_dim() * kind.elt_size_in_bytes() as i64;
    packing.tokens() as u64 * activation_bytes(config, kind, model.ops) + (gathered * of_keys) as u64
}

/// The number of first blocks that are computed again for a micro-batch, given the bytes that each block's graph keeps.
fn blocks_to_recompute(model: &Model, each: u64, recompute: Recompute) -> usize {
    let blocks = model.blocks();
    match recompute {
        // A graph would keep the gathered weights of its block; and all ranks must gather the same.
        Recompute::Auto if matches!(model.units, HeldUnits::Sharded { .. }) => blocks,
        Recompute::All => blocks,
        Recompute::None => 0,
        Recompute::Blocks(n) => n.min(blocks),
        Recompute::Auto => {
            // Without a figure from the system, memory is taken to be scarce.
            let free = fused::free_bytes(model.device()).unwrap_or(0);
            let free = if model.device() == Device::Cpu { host::usable(free) } else { free };
            blocks_without_room(blocks, each, free)
        }
    }
}

/// Bytes for each token that the graph of one block keeps for its backward pass.
///
/// These are the tensors that the operations of [`Model::block`] save, and the inputs of its linear layers: the block's
/// input and its norm, queries, keys and values after the rotation, the attention's output, the sum with it and its norm,
/// gate and up, and their product. Scales of norms and log-sums of attention are float32.
pub fn activation_bytes(c: &Config, kind: Kind, ops: Ops) -> u64 {
    let (q, kv) = (c.num_attention_heads * c.head_dim(), c.num_key_value_heads * c.head_dim());
    let attention = (q + 2 * kv) + q;
    // The norms of heads keep their inputs too, and with them the values before the rotation. Generic operations also keep the
    // normed heads before their weights, and read the values where they are.
    let heads = c.num_attention_heads + c.num_key_value_heads;
    let (head_norms, scales) = match (c.block.head_norms, ops) {
        (false, _) => (0, 0),
        (true, Ops::Fused) => (q + 2 * kv, heads),
        (true, Ops::Generic) => (2 * q + 2 * kv, heads),
    };
    let elements = 4 * c.hidden_size + attention + head_norms + 3 * c.intermediate_size;
    let float32 = 2 + c.num_attention_heads + scales;
    elements as u64 * kind.elt_size_in_bytes() as u64 + 4 * float32 as u64
}

/// Number of `blocks` whose activations, `each` bytes, do not fit into their share of `free` bytes.
pub fn blocks_without_room(blocks: usize, each: u64, free: u64) -> usize {
    let room = (free as f64 * ACTIVATION_SHARE / each.max(1) as f64) as usize;
    blocks.saturating_sub(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_blocks_are_computed_again_as_have_no_room() {
        assert_eq!(blocks_without_room(24, 100, 4800), 0);
        assert_eq!(blocks_without_room(24, 100, 4799), 1);
        assert_eq!(blocks_without_room(24, 100, 450), 22);
        assert_eq!(blocks_without_room(24, 100, 0), 24);
    }
}
