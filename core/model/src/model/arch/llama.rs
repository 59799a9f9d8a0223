//! Llama 2 and 3, and SmolLM2: no biases, unless `attention_bias` or `mlp_bias` says so. `modeling_llama.py` of transformers.

use super::{Architecture, BlockParts, Defaults, Shape};

pub(super) static LLAMA: Architecture = Architecture {
    models: "Llama and SmolLM2",
    model_type: "llama",
    class: "LlamaForCausalLM",
    section: None,
    defaults: Defaults {
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2_048,
        rope_theta: 1e4,
        rms_norm_eps: 1e-6,
    },
    renamed: &[],
    // The `config.json` of HuggingFaceTB/SmolLM2-135M.
    shapes: &[shape("llama-tiny", [512, 64, 176, 2, 4, 2]), shape("smollm2-135m", [49_152, 576, 1_536, 30, 9, 3])],
    tower: None,
    read_block: |fields| {
        let attention = fields.boolean("attention_bias")?.unwrap_or(false);
        let mlp_bias = fields.boolean("mlp_bias")?.unwrap_or(false);
        Ok(BlockParts { qkv_bias: attention, o_bias: attention, mlp_bias, head_norms: false })
    },
    write_block: |block, json| {
        json["attention_bias"] = block.qkv_bias.into();
        json["mlp_bias"] = block.mlp_bias.into();
    },
};

const fn shape(name: &'static str, sizes: [i64; 6]) -> Shape {
    Shape {
        name,
        sizes,
        head_dim: None,
        tie_word_embeddings: true,
        max_position_embeddings: 8_192,
        rope_theta: 1e5,
        rms_norm_eps: 1e-5,
    }
}
