//! Bytes of a micro-batch's forward and backward pass, and the blocks whose graphs find room.
//!
//! ```text
//! kept graphs = (share * free - max(gradients, head) - B * input) / (graph - input)    of B blocks; all others keep an input
//! ```
//!
//! With sharded weights a kept graph also holds the gathered weights of its block, and all ranks gather the same: the rank
//! with the least room decides for all. `nestor plan` computes the same.

use anyhow::Result;
use nestor_torch::ops::Ops;
use nestor_torch::{fused, host};
use tch::{Device, Kind};

use super::batching::own_tokens;
use super::packing::Packed;
use crate::data::Batch;
use crate::model::config::Output;
use crate::model::{Config, Model};
use crate::ranks::exchange;
use crate::recipe::Recompute;
use crate::shard::{HeldUnits, Ranks};

/// Share of a GPU's free memory that a pass may fill. The rest is for pieces that libtorch's allocator cannot use.
const GPU_SHARE: f64 = 0.85;

/// The same on a CPU, whose memory other processes use too.
const CPU_SHARE: f64 = 0.5;

/// Bytes of the head's logits in memory at once. If those of all states fit they are computed once, and stay until the loss's
/// gradient overwrites them; else the backward pass computes each chunk again.
pub const CHUNK_BYTES: i64 = 512 << 20;

/// Logit entries that are computed in float32 at once where no fused operation does it: 128 MiB a copy.
pub const PIECE_ELEMENTS: i64 = 1 << 25;

/// Sizes of a micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct PassSize {
    /// Computed tokens.
    pub tokens: u64,
    /// States that the head reads.
    pub states: u64,
    /// Tokens of images among the computed ones.
    pub image_tokens: u64,
}

/// Bytes of a pass beside the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassBytes {
    /// Input of one block.
    pub input: u64,
    /// Graph of one block, its input included.
    pub graph: u64,
    /// Gradients of activations during one block's backward pass, and those of embeddings.
    pub gradients: u64,
    /// Logits and states of the head.
    pub head: u64,
}

impl PassBytes {
    /// Those of a pass of this size.
    pub fn new(c: &Config, kind: Kind, ops: Ops, size: PassSize) -> Self {
        let PassSize { tokens, states, image_tokens } = size;
        let b = kind.elt_size_in_bytes() as u64;
        let (hidden, ffn) = (c.hidden_size as u64, c.intermediate_size as u64);
        let (q, kv) = ((c.num_attention_heads * c.head_dim()) as u64, (c.num_key_value_heads * c.head_dim()) as u64);

        // Those of each linear layer's output, those between the layers, and the embedding's in float32.
        let gradients = tokens * b * (3 * ffn + q + 2 * kv + 3 * hidden) + 4 * tokens * hidden;
        let outputs = if c.output == Output::Value { 1 } else { c.vocab_size as u64 };
        let logits = (states * outputs * b).min(CHUNK_BYTES as u64);
        // Without a fused operation also log-probs and probabilities of a piece, in float32.
        let pieces = if ops == Ops::Fused { 0 } else { 2 * 4 * (PIECE_ELEMENTS as u64).min(logits / b) };
        Self {
            input: tokens * hidden * b,
            graph: tokens * activation_bytes(c, kind, ops),
            gradients: gradients + image_tokens * hidden * b,
            head: logits + pieces + 3 * states * hidden * b,
        }
    }

    /// Those of a packed micro-batch.
    fn of(model: &Model, packed: &Packed) -> Self {
        let size = PassSize {
            tokens: packed.packing.tokens() as u64,
            states: packed.predictors.size()[0] as u64,
            image_tokens: packed.images.as_ref().map_or(0, |images| images.rows.size()[0] as u64),
        };
        let gathered = if model.ops == Ops::Generic { packed.packing.sequences.gathered() as u64 } else { 0 };
        Self::new(&model.config, model.kind(), model.ops, size).with_keys(&model.config, model.kind(), gathered)
    }

    /// Those of a micro-batch before it is packed, at most, with the gathered weights of each kept block.
    fn of_sequences(model: &Model, batch: &Batch, micro_batch: &[usize]) -> Self {
        let sequences = micro_batch.iter().map(|&i| &batch.sequences[i]);
        let tokens = own_tokens(batch, micro_batch).sum::<usize>() as u64;
        let rows = sequences.clone().flat_map(|sequence| &sequence.rows);
        let size = PassSize {
            tokens,
            states: rows.map(|&row| batch.rows.response(row).len() as u64 + 1).sum(),
            image_tokens: if sequences.clone().any(|sequence| !sequence.images.is_empty()) { tokens } else { 0 },
        };
        let seen = sequences.map(|sequence| sequence.tokens.len() as u64).sum();
        let (config, kind) = (&model.config, model.kind());
        let pass = Self::new(config, kind, model.ops, size);
        let pass = if seen > tokens && model.ops == Ops::Generic { pass.with_keys(config, kind, seen) } else { pass };
        pass.with_weights(kind, model.layouts[1].numel() as u64)
    }

    /// The generic form's graphs keep the keys and values too that it gathered for sequences with common beginnings.
    fn with_keys(self, c: &Config, kind: Kind, gathered: u64) -> Self {
        let of_token = 2 * (c.num_key_value_heads * c.head_dim()) as u64 * kind.elt_size_in_bytes() as u64;
        Self { graph: self.graph + gathered * of_token, ..self }
    }

    /// A kept graph holds the gathered weights of its block, of this many elements.
    pub fn with_weights(self, kind: Kind, numel: u64) -> Self {
        Self { graph: self.graph + numel * kind.elt_size_in_bytes() as u64, ..self }
    }

    /// The number of first `blocks` whose graphs find no room in a device with this many free bytes.
    pub fn blocks_without_room(&self, blocks: usize, free: u64, device: Device) -> usize {
        let share = if device == Device::Cpu { CPU_SHARE } else { GPU_SHARE };
        let others = self.gradients.max(self.head) + blocks as u64 * self.input;
        let room = ((free as f64 * share) as u64).saturating_sub(others);
        let kept = room / self.graph.saturating_sub(self.input).max(1);
        blocks.saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX))
    }
}

/// The number of first blocks that are computed again for a micro-batch; none for a rank that has none left.
pub fn blocks_to_recompute(model: &Model, packed: Option<&Packed>, recompute: Recompute) -> usize {
    let blocks = model.blocks();
    match recompute {
        // Nobody asked the other ranks.
        Recompute::Auto if matches!(model.units, HeldUnits::Sharded { .. }) => blocks,
        Recompute::All => blocks,
        Recompute::None => 0,
        Recompute::Blocks(n) => n.min(blocks),
        Recompute::Auto => packed.map_or(0, |packed| {
            let device = model.device();
            PassBytes::of(model, packed).blocks_without_room(blocks, free_bytes(device), device)
        }),
    }
}

/// The choice for this rank's micro-batches of a mini-batch. With sharded weights `auto` is one number for all ranks; takes
/// all ranks at once.
pub fn agreed(
    (model, ranks): (&Model, &Ranks),
    batch: &Batch,
    micro_batches: &[Option<Vec<usize>>],
    recompute: Recompute,
) -> Result<Recompute> {
    if recompute != Recompute::Auto || !matches!(model.units, HeldUnits::Sharded { .. }) {
        return Ok(recompute);
    }
    let device = model.device();
    // Ranks of one CPU share its memory.
    let free = if device == Device::Cpu { free_bytes(device) / ranks.world() as u64 } else { free_bytes(device) };
    let all = exchange(&*ranks.comm, Ok(own_blocks_without_room(model, batch, micro_batches, free)))?;
    Ok(Recompute::Blocks(all.into_iter().max().unwrap_or(0)))
}

/// The number of first blocks whose graphs find no room at this rank, in any of its micro-batches.
fn own_blocks_without_room(model: &Model, batch: &Batch, micro_batches: &[Option<Vec<usize>>], free: u64) -> usize {
    let of_each = micro_batches.iter().flatten().map(|micro| {
        PassBytes::of_sequences(model, batch, micro).blocks_without_room(model.blocks(), free, model.device())
    });
    of_each.max().unwrap_or(0)
}

/// Free bytes of a device. Without a figure from the system, memory is taken to be scarce.
fn free_bytes(device: Device) -> u64 {
    let free = fused::free_bytes(device).unwrap_or(0);
    if device == Device::Cpu { host::usable(free) } else { free }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Sequence;

    #[test]
    fn graphs_fill_their_share_of_what_is_free() {
        let pass = PassBytes { input: 10, graph: 110, gradients: 50, head: 30 };
        let again = |free| pass.blocks_without_room(24, free, Device::Cpu);
        // Half of it: 50 of gradients, 24 inputs, and 100 more for each graph.
        assert_eq!(again(2 * (50 + 240 + 2400)), 0);
        assert_eq!(again(2 * (50 + 240 + 2400) - 2), 1);
        assert_eq!(again(2 * (50 + 240 + 200)), 22);
        assert_eq!([again(2 * 290), again(2 * 100), again(0)], [24; 3]);
        let gpu = |free| pass.blocks_without_room(24, free, Device::Cuda(0));
        assert_eq!([gpu(3165), gpu(3164)], [0, 1], "0.85 of 3,165 are 2,690");
    }

    /// The largest micro-batch decides, and each graph holds the gathered weights of its block.
    #[test]
    fn a_rank_with_shards_counts_gathered_weights() {
        let config = Config { num_hidden_layers: 4, ..Config::shape("tiny").expect("a shape") };
        let model = Model::empty(config, Kind::Float, Device::Cpu);
        let sequence = |tokens: &[u32]| Sequence { tokens: tokens.to_vec(), ..Sequence::default() };
        // The first two begin alike: 30 tokens of 40.
        let sequences = vec![sequence(&[1; 20]), sequence(&[[1; 10], [2; 10]].concat()), sequence(&[3; 5])];
        let batch = Batch { sequences, ..Batch::default() };
        let pass =
            PassBytes::new(&model.config, Kind::Float, model.ops, PassSize { tokens: 30, ..PassSize::default() });
        let gathered = model.layouts[1].numel() as u64;
        assert_eq!(PassBytes::of_sequences(&model, &batch, &[0, 1]), pass.with_weights(Kind::Float, gathered));
        let graph = pass.graph - pass.input + 4 * gathered;
        let room = |graphs: u64| 2 * (pass.gradients.max(pass.head) + 4 * pass.input + graphs * graph);
        let again = |free, micro: &[Option<Vec<usize>>]| own_blocks_without_room(&model, &batch, micro, free);
        let both = [Some(vec![2]), Some(vec![0, 1]), None];
        assert_eq!([again(room(4), &both), again(room(4) - 2, &both), again(room(1), &both)], [0, 1, 3]);
        assert_eq!(again(room(1), &[None]), 0, "a rank without a micro-batch leaves the choice to others");
    }
}
