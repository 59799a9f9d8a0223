//! Qwen2 and Qwen2.5 in every size: queries, keys and values have biases. `modeling_qwen2.py` of transformers.

use super::{Architecture, BlockParts, Defaults, Shape};

pub(super) static QWEN2: Architecture = Architecture {
    models: "Qwen2 and Qwen2.5",
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    section: None,
    defaults: Defaults {
        num_key_value_heads: Some(32),
        head_dim: None,
        max_position_embeddings: 32_768,
        rope_theta: 1e4,
        rms_norm_eps: 1e-6,
    },
    renamed: &[],
    // The `config.json` of Qwen/Qwen2.5-0.5B and the others.
    shapes: &[
        shape("tiny", [512, 64, 176, 2, 4, 2], true),
        shape("0.5b", [151_936, 896, 4_864, 24, 14, 2], true),
        shape("1.5b", [151_936, 1_536, 8_960, 28, 12, 2], true),
        shape("3b", [151_936, 2_048, 11_008, 36, 16, 2], true),
        shape("7b", [152_064, 3_584, 18_944, 28, 28, 4], false),
        shape("14b", [152_064, 5_120, 13_824, 48, 40, 8], false),
    ],
    tower: None,
    read_block: |_| Ok(BlockParts { qkv_bias: true, ..BlockParts::PLAIN }),
    write_block: |_, _| {},
};

pub(super) const fn shape(name: &'static str, sizes: [i64; 6], tie_word_embeddings: bool) -> Shape {
    Shape {
        name,
        sizes,
        head_dim: None,
        tie_word_embeddings,
        max_position_embeddings: 32_768,
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
    }
}
