//! The sizes of a network, and the named shapes.

use anyhow::Result;
use nestor_plugin::suggest;
use serde::{Deserialize, Serialize};

use super::vision_config::VisionConfig;
use crate::input_error;
use crate::recipe::NewModel;

/// The supported networks; they differ in the attention of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Qwen2 and Qwen2.5: queries, keys and values have biases.
    Qwen2,
    /// Qwen3: no biases; queries and keys are normalised head by head.
    Qwen3,
    /// Qwen2.5-VL: the blocks of Qwen2, beside a vision tower.
    #[serde(rename = "qwen2_5_vl")]
    Qwen25Vl,
}

impl Architecture {
    pub(super) const ALL: [Self; 3] = [Self::Qwen2, Self::Qwen3, Self::Qwen25Vl];

    /// The `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen25Vl => "qwen2_5_vl",
        }
    }

    /// The name in the `architectures` of `config.json`.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen25Vl => "Qwen2_5_VLForConditionalGeneration",
        }
    }

    /// True if a block's queries, keys and values have biases.
    pub fn has_qkv_bias(self) -> bool {
        self != Self::Qwen3
    }
}

/// The fields of a `config.json` that shape the network, under their Hugging Face names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab_size: i64,
    /// Width of the residual stream, E.
    pub hidden_size: i64,
    /// Width of the feed-forward layer.
    pub intermediate_size: i64,
    /// Number of blocks, L.
    pub num_hidden_layers: i64,
    /// Number of query heads, H.
    pub num_attention_heads: i64,
    /// Number of key and value heads, K.
    pub num_key_value_heads: i64,
    /// Size of one head, D, where it is not `hidden_size` / `num_attention_heads`.
    pub head_dim: Option<i64>,
    /// Longest sequence the model was made for.
    pub max_position_embeddings: i64,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Epsilon of the norms.
    pub rms_norm_eps: f64,
    /// The head is the embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of a new model's weight matrices.
    pub initializer_range: f64,
    pub output: Output,
    /// The vision tower, of a model that reads images.
    pub vision: Option<VisionConfig>,
}

/// The output of the head after the last block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// A language model: logits of the next token.
    #[default]
    Tokens,
    /// A critic: one value of the state.
    Value,
}

/// The names of [`Config::shape`].
pub const SHAPES: [&str; 12] = [
    "tiny",
    "0.5b",
    "1.5b",
    "3b",
    "7b",
    "14b",
    "qwen3-tiny",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen2.5-vl-tiny",
    "qwen2.5-vl-3b",
    "qwen2.5-vl-7b",
];

/// More blocks than any model of this kind has; bounds the memory that a wrong `config.json` allocates.
const MOST_BLOCKS: i64 = 1_000;

/// More parameters than any model of this kind has.
const MOST_PARAMETERS: f64 = 1e13;

impl Config {
    /// Refuses token ids without a row in the embedding; `what` and the row's number name the row in the error.
    pub fn check_tokens<'a>(&self, what: &str, rows: impl Iterator<Item = &'a [u32]>) -> Result<()> {
        for (number, row) in rows.enumerate() {
            if let Some(id) = row.iter().find(|&&id| i64::from(id) >= self.vocab_size) {
                let size = self.vocab_size;
                return Err(input_error!("{what} {number} has token id {id}, but the model's vocab_size is {size}"));
            }
        }
        Ok(())
    }

    /// Size of one head, D.
    pub fn head_dim(&self) -> i64 {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// The shape of a Qwen2.5 or Qwen3 model by its size, or a `tiny` one for trials. The sizes are those of the
    /// `config.json` that Qwen publishes with each model (Qwen/Qwen2.5-0.5B, Qwen/Qwen3-0.6B and the others).
    pub fn shape(name: &str) -> Result<Self> {
        let [vocab, hidden, ffn, layers, heads, kv_heads] = match name {
            "tiny" | "qwen3-tiny" | "qwen2.5-vl-tiny" => [512, 64, 176, 2, 4, 2],
            "0.5b" => [151_936, 896, 4_864, 24, 14, 2],
            "1.5b" => [151_936, 1_536, 8_960, 28, 12, 2],
            "3b" | "qwen2.5-vl-3b" => [151_936, 2_048, 11_008, 36, 16, 2],
            "7b" | "qwen2.5-vl-7b" => [152_064, 3_584, 18_944, 28, 28, 4],
            "14b" => [152_064, 5_120, 13_824, 48, 40, 8],
            "qwen3-0.6b" => [151_936, 1_024, 3_072, 28, 16, 8],
            "qwen3-1.7b" => [151_936, 2_048, 6_144, 28, 16, 8],
            other => return Err(input_error!("unknown shape `{other}`{}", suggest(other, &SHAPES))),
        };
        let vision = match name {
            "qwen2.5-vl-tiny" => Some(VisionConfig {
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
            }),
            _ if name.starts_with("qwen2.5-vl") => Some(VisionConfig::published()),
            _ => None,
        };
        let (architecture, head_dim, max_position_embeddings) = match name {
            _ if name.starts_with("qwen2.5-vl") => (Architecture::Qwen25Vl, None, 128_000),
            "qwen3-tiny" => (Architecture::Qwen3, Some(32), 40_960),
            _ if name.starts_with("qwen3") => (Architecture::Qwen3, Some(128), 40_960),
            _ => (Architecture::Qwen2, None, 32_768),
        };
        Ok(Self {
            architecture,
            vocab_size: vocab,
            hidden_size: hidden,
            intermediate_size: ffn,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings,
            rope_theta: 1e6,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: !matches!(name, "7b" | "14b" | "qwen2.5-vl-7b"),
            initializer_range: 0.02,
            output: Output::Tokens,
            vision,
        })
    }

    /// The network that a recipe's `model.new` describes, with a tokenizer of `vocab_size` ids. `image_ids` are those of a
    /// tower's tokens: start and end of an image, image, and video.
    pub fn of_new(new: &NewModel, vocab_size: i64, max_position_embeddings: i64, image_ids: [i64; 4]) -> Self {
        let vision = new.vision.as_ref().map(|vision| VisionConfig::of_new(new, vision, image_ids));
        Self {
            architecture: if vision.is_some() { Architecture::Qwen25Vl } else { Architecture::Qwen2 },
            vocab_size,
            hidden_size: new.hidden_size,
            intermediate_size: new.intermediate_size,
            num_hidden_layers: new.layers,
            num_attention_heads: new.heads,
            num_key_value_heads: new.kv_heads,
            head_dim: None,
            max_position_embeddings,
            rope_theta: 1e6,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: true,
            initializer_range: new.initializer_range,
            output: Output::Tokens,
            vision,
        }
    }

    /// Gives the network this number of blocks, and a vision tower at most as many, the last of which attends to the whole image.
    pub fn cut(&mut self, blocks: i64) {
        self.num_hidden_layers = blocks;
        if let Some(vision) = self.vision.as_mut().filter(|vision| vision.depth > blocks) {
            vision.depth = blocks;
            vision.fullatt_block_indexes = vec![blocks - 1];
        }
    }

    /// Checks that the sizes describe a network.
    pub fn check(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        for (name, size) in sizes {
            if size < 1 {
                return Err(input_error!("{name} is {size}; it must be at least 1"));
            }
        }
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        match self.head_dim {
            Some(dim) if dim < 2 || dim % 2 != 0 => {
                return Err(input_error!("head_dim is {dim}; it must be even and at least 2"));
            }
            None if self.hidden_size % heads != 0 || (self.hidden_size / heads) % 2 != 0 => {
                return Err(input_error!(
                    "hidden_size {} does not divide into {heads} heads of an even size; choose a multiple of twice \
                     num_attention_heads",
                    self.hidden_size
                ));
            }
            _ => {}
        }
        if heads % kv_heads != 0 {
            return Err(input_error!(
                "num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}, so heads cannot share them"
            ));
        }
        // In floating point, which does not overflow here.
        let size = |n: i64| n as f64;
        let attention = 2.0 * (size(heads) + size(kv_heads)) * size(self.head_dim());
        let block = size(self.hidden_size) * (attention + 3.0 * size(self.intermediate_size));
        let outer = 2.0 * size(self.vocab_size) * size(self.hidden_size);
        let parameters = outer + size(self.num_hidden_layers) * block;
        if self.num_hidden_layers > MOST_BLOCKS || parameters > MOST_PARAMETERS {
            return Err(input_error!(
                "these sizes make a network of {parameters:.0e} parameters in {} blocks, which no model of this kind has",
                self.num_hidden_layers
            ));
        }
        if let Some(vision) = &self.vision {
            vision.check(self.head_dim(), self.vocab_size)?;
        }
        // Arithmetic on them is in float32.
        let positive = |x: f64| (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&x);
        if !positive(self.rope_theta) || !positive(self.rms_norm_eps) {
            return Err(input_error!(
                "rope_theta {} and rms_norm_eps {} must be positive numbers of float32",
                self.rope_theta,
                self.rms_norm_eps
            ));
        }
        Ok(())
    }
}
