//! How many blocks a backward pass must compute again, so that what the others keep has room.

use nestor_torch::fused;
use tch::Kind;

use crate::model::{Architecture, Config, Model};
use crate::recipe::Recompute;
use crate::shard::Units;

/// Share of a device's free memory that kept activations may take; the rest is for logits, gradients and others' needs.
const SHARE: f64 = 0.5;

/// The number of first blocks that are computed again for a micro-batch of this many tokens.
pub fn blocks_to_recompute(model: &Model, tokens: i64, recompute: Recompute) -> usize {
    let blocks = model.blocks();
    match recompute {
        // A graph would keep the gathered weights of its block; and all ranks must gather the same.
        Recompute::Auto if matches!(model.units, Units::Spread { .. }) => blocks,
        Recompute::All => blocks,
        Recompute::None => 0,
        Recompute::Blocks(n) => n.min(blocks),
        Recompute::Auto => {
            // Where the system does not say, memory is taken to be scarce.
            let free = fused::free_bytes(model.device()).unwrap_or(0);
            blocks_without_room(blocks, tokens as u64 * activation_bytes(&model.config, model.kind()), free)
        }
    }
}

/// Bytes for each token that the graph of one block keeps for its backward pass.
///
/// Counted are what the operations of [`Model::block`] save: two normed inputs with their scales and the sum between them,
/// queries, keys and values, before and after they are laid out for the attention (where keys and values are repeated for
/// the heads that share them), its output likewise, gate and up, and their product.
pub fn activation_bytes(c: &Config, kind: Kind) -> u64 {
    let (q, kv) = (c.num_attention_heads * c.head_dim(), c.num_key_value_heads * c.head_dim());
    let attention = (q + 2 * kv) + 3 * q + 2 * q;
    let head_norms = if c.architecture == Architecture::Qwen3 { q + kv } else { 0 };
    let elements = 4 * c.hidden_size + attention + head_norms + 3 * c.intermediate_size;
    let float32 = 2 + c.num_attention_heads; // scales of the norms, log-sums of the attention
    elements as u64 * kind.elt_size_in_bytes() as u64 + 4 * float32 as u64
}

/// How many of `blocks` blocks find no room for `each` bytes in their share of `free` bytes.
pub fn blocks_without_room(blocks: usize, each: u64, free: u64) -> usize {
    let room = (free as f64 * SHARE / each.max(1) as f64) as usize;
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
