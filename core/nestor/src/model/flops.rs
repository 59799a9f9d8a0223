//! Multiplications and additions of a network's forward pass.

use super::Config;
use super::config::Output;
use super::qwen2::layouts;

/// Elements of a block's matrices.
pub fn block_matrices(c: &Config) -> u64 {
    let block = &layouts(&Config { num_hidden_layers: 1, ..c.clone() })[1];
    block.params.iter().filter(|param| param.shape.len() == 2).map(|param| param.numel() as u64).sum()
}

/// FLOPs of one block for each token of sequences of this length.
pub fn block_flops(c: &Config, length: f64) -> f64 {
    2.0 * block_matrices(c) as f64 + 2.0 * length * (c.num_attention_heads * c.head_dim()) as f64
}

/// FLOPs of the head for each state that it reads: a language model's logits, or a critic's value.
pub fn head_flops(c: &Config) -> f64 {
    let outputs = if c.output == Output::Value { 1 } else { c.vocab_size };
    2.0 * (outputs * c.hidden_size) as f64
}
