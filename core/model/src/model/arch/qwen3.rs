//! Qwen3: no biases; queries and keys are normalised head by head, and heads have a size of their own. `modeling_qwen3.py` of
//! transformers.

use super::{Architecture, BlockParts, Defaults, Shape};
use crate::input_error;

pub(super) static QWEN3: Architecture = Architecture {
    models: "Qwen3",
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    section: None,
    defaults: Defaults {
        num_key_value_heads: Some(32),
        head_dim: Some(128),
        max_position_embeddings: 32_768,
        rope_theta: 1e4,
        rms_norm_eps: 1e-6,
    },
    renamed: &[],
    // The `config.json` of Qwen/Qwen3-0.6B and the other.
    shapes: &[
        shape("qwen3-tiny", [512, 64, 176, 2, 4, 2], 32),
        shape("qwen3-0.6b", [151_936, 1_024, 3_072, 28, 16, 8], 128),
        shape("qwen3-1.7b", [151_936, 2_048, 6_144, 28, 16, 8], 128),
    ],
    tower: None,
    read_block: |fields| match fields.boolean("attention_bias")? {
        Some(true) => Err(input_error!("attention_bias is not supported; no published Qwen3 model has it")),
        _ => Ok(BlockParts { head_norms: true, ..BlockParts::PLAIN }),
    },
    write_block: |block, json| json["attention_bias"] = block.qkv_bias.into(),
};

const fn shape(name: &'static str, sizes: [i64; 6], head_dim: i64) -> Shape {
    Shape {
        name,
        sizes,
        head_dim: Some(head_dim),
        tie_word_embeddings: true,
        max_position_embeddings: 40_960,
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
    }
}
