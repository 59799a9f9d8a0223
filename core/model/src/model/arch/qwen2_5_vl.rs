//! Qwen2.5-VL: the blocks of Qwen2, and a vision tower (`model/vision`), whose keys `vision_config.rs` reads.
//! `modeling_qwen2_5_vl.py` of transformers; the defaults are those of its `Qwen2_5_VLTextConfig`.

use super::{Architecture, Defaults, Shape, qwen2};
use crate::model::vision_config::VisionConfig;

pub(super) static QWEN2_5_VL: Architecture = Architecture {
    models: "Qwen2.5-VL",
    model_type: "qwen2_5_vl",
    class: "Qwen2_5_VLForConditionalGeneration",
    // transformers 5 writes it; published files have all keys on one level.
    section: Some("text_config"),
    defaults: Defaults {
        num_key_value_heads: Some(32),
        head_dim: None,
        max_position_embeddings: 32_768,
        rope_theta: 1e6,
        rms_norm_eps: 1e-5,
    },
    // Some versions of transformers write the names of their modules in place of the published ones.
    renamed: &[("model.language_model.", "model."), ("model.visual.", "visual.")],
    // The `config.json` of Qwen/Qwen2.5-VL-3B-Instruct and 7B.
    shapes: &[
        shape("qwen2.5-vl-tiny", [512, 64, 176, 2, 4, 2], true),
        shape("qwen2.5-vl-3b", [151_936, 2_048, 11_008, 36, 16, 2], true),
        shape("qwen2.5-vl-7b", [152_064, 3_584, 18_944, 28, 28, 4], false),
    ],
    tower: Some(|shape| if shape == "qwen2.5-vl-tiny" { tiny_tower() } else { VisionConfig::published() }),
    read_block: qwen2::QWEN2.read_block,
    write_block: qwen2::QWEN2.write_block,
};

const fn shape(name: &'static str, sizes: [i64; 6], tie_word_embeddings: bool) -> Shape {
    Shape { max_position_embeddings: 128_000, ..qwen2::shape(name, sizes, tie_word_embeddings) }
}

fn tiny_tower() -> VisionConfig {
    VisionConfig {
        depth: 2,
        hidden_size: 32,
        intermediate_size: 88,
        num_heads: 2,
        fullatt_block_indexes: vec![1],
        mrope_section: [2, 3, 3],
        image_token_id: 508,
        video_token_id: 509,
        vision_start_token_id: 506,
        vision_end_token_id: 507,
        ..VisionConfig::published()
    }
}
