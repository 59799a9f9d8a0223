//! Multiplications and additions of a network's forward pass.

use super::Config;
use super::VisionConfig;
use super::config::Output;
use super::unit_weights::layouts;

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

/// FLOPs of a vision tower for one image of `patches` patches, merger included. Windows count as whole, also at the edges of an
/// image, and every patch attends to all of its window or image.
pub fn tower_flops(v: &VisionConfig, hidden_size: i64, patches: f64) -> f64 {
    let (width, ffn) = (v.hidden_size as f64, v.intermediate_size as f64);
    let full = v.fullatt_block_indexes.iter().filter(|block| (0..v.depth).contains(block)).count() as f64;
    let window = patches.min((v.window_size / v.patch_size).pow(2) as f64);
    let matrices = v.depth as f64 * (4.0 * width * width + 3.0 * width * ffn) + width * v.patch_numel() as f64;
    let attended = full * patches + (v.depth as f64 - full) * window;
    patches * (2.0 * matrices + 4.0 * width * attended + merger_flops(v, hidden_size))
}

/// FLOPs of a tower's merger for each patch.
pub fn merger_flops(v: &VisionConfig, hidden_size: i64) -> f64 {
    let merged = (v.hidden_size * v.merged()) as f64;
    2.0 * merged * (merged + hidden_size as f64) / v.merged() as f64
}
