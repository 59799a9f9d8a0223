//! The architectures: one file for each, with all that differs from the decoder that they share. A new one is a file, its
//! module and its place in [`ALL`].

mod llama;
mod qwen2;
mod qwen3;
mod qwen2_5_vl;

use anyhow::Result;
use serde_json::{Map, Value};

use super::fields::Fields;
use super::vision_config::VisionConfig;
use crate::input_error;

/// Every architecture, in the order in which messages name them.
pub static ALL: &[&Architecture] = &[&qwen2::QWEN2, &qwen3::QWEN3, &qwen2_5_vl::QWEN2_5_VL, &llama::LLAMA];

/// A network of the Hugging Face form: its names in `config.json`, and its differences from the others.
#[derive(Debug)]
pub struct Architecture {
    /// Its models, as messages name them.
    pub models: &'static str,
    /// The `model_type` in `config.json`.
    pub model_type: &'static str,
    /// The name in the `architectures` of `config.json`.
    pub class: &'static str,
    /// The section of `config.json` that may hold the decoder's keys.
    pub section: Option<&'static str>,
    /// The values of keys that a `config.json` lacks, which are those of transformers.
    pub defaults: Defaults,
    /// Prefixes of tensors' names that some files have, with the decoder's names for them.
    pub renamed: &'static [(&'static str, &'static str)],
    /// The sizes that `nestor model new` knows by name. The first is a tiny one, for trials.
    pub shapes: &'static [Shape],
    /// The vision tower of one of the shapes; none where the network reads no images.
    pub tower: Option<fn(&str) -> VisionConfig>,
    /// Reads from `config.json` which parts a block has, and refuses what the decoder cannot compute.
    pub read_block: fn(&Fields) -> Result<BlockParts>,
    /// Adds to `config.json` the keys that say which parts a block has.
    pub write_block: fn(BlockParts, &mut Value),
}

/// The parts of a block that only some networks have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockParts {
    /// Biases of queries, keys and values.
    pub qkv_bias: bool,
    /// A bias of the attention's output.
    pub o_bias: bool,
    /// Biases of gate, up and down.
    pub mlp_bias: bool,
    /// Norms of each head of queries and keys.
    pub head_norms: bool,
}

/// The values of keys that a `config.json` lacks.
#[derive(Debug)]
pub struct Defaults {
    /// As many as query heads where there is none.
    pub num_key_value_heads: Option<i64>,
    /// `hidden_size` / `num_attention_heads` where there is none.
    pub head_dim: Option<i64>,
    pub max_position_embeddings: i64,
    pub rope_theta: f64,
    pub rms_norm_eps: f64,
}

/// The sizes of a network by name.
#[derive(Debug)]
pub struct Shape {
    pub name: &'static str,
    /// `vocab_size`, `hidden_size`, `intermediate_size`, `num_hidden_layers`, `num_attention_heads` and
    /// `num_key_value_heads`.
    pub sizes: [i64; 6],
    pub head_dim: Option<i64>,
    pub tie_word_embeddings: bool,
    pub max_position_embeddings: i64,
    pub rope_theta: f64,
    pub rms_norm_eps: f64,
}

impl BlockParts {
    /// No biases, no norms of heads.
    pub const PLAIN: Self = Self { qkv_bias: false, o_bias: false, mlp_bias: false, head_norms: false };
    /// Every part.
    pub const ALL: Self = Self { qkv_bias: true, o_bias: true, mlp_bias: true, head_norms: true };
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

impl Architecture {
    /// The architecture of a `config.json`, by its `model_type` and `architectures`.
    pub fn of_json(json: &Map<String, Value>) -> Result<&'static Self> {
        let model_type = Fields(json).text("model_type")?.unwrap_or_default();
        let classes = json.get("architectures").and_then(Value::as_array).filter(|list| !list.is_empty());
        let fits = |known: &&&Self| {
            model_type == known.model_type && classes.is_none_or(|list| list.iter().any(|name| name == known.class))
        };
        ALL.iter().find(fits).copied().ok_or_else(|| {
            input_error!(
                "architecture {} (model_type \"{model_type}\") is not supported; the known ones are {}",
                classes.map_or("unnamed".to_string(), |list| Value::from(list.clone()).to_string()),
                ALL.iter().map(|known| format!("{} ({})", known.models, known.class)).collect::<Vec<_>>().join(", ")
            )
        })
    }

    /// The architecture of a recipe's `model.new`, which may be `seeing`.
    pub fn of_new(seeing: bool) -> &'static Self {
        if seeing { &qwen2_5_vl::QWEN2_5_VL } else { &qwen2::QWEN2 }
    }

    /// The architecture that has the shape of this name, and the shape.
    pub fn of_shape(name: &str) -> Option<(&'static Self, &'static Shape)> {
        ALL.iter().find_map(|known| Some((*known, known.shapes.iter().find(|shape| shape.name == name)?)))
    }

    /// The parts of a block where no `config.json` says otherwise.
    pub fn usual_block(&self) -> Result<BlockParts> {
        (self.read_block)(&Fields(&Map::new()))
    }

    /// The decoder's name of a tensor in a file.
    pub fn renamed(&self, name: &str) -> String {
        let rest = |(from, to): &(&str, &str)| Some(format!("{to}{}", name.strip_prefix(from)?));
        self.renamed.iter().find_map(rest).unwrap_or_else(|| name.to_string())
    }
}

/// The names of all shapes.
pub fn shape_names() -> Vec<&'static str> {
    ALL.iter().flat_map(|known| known.shapes).map(|shape| shape.name).collect()
}
