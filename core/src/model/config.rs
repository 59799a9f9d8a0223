//! `config.json` of a Hugging Face folder, and the named shapes.

use serde::{Deserialize, Serialize};

/// The fields of a Qwen2 `config.json` that shape the network, under their Hugging Face names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
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
    /// Longest sequence the model was made for.
    pub max_position_embeddings: i64,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Epsilon of the norms.
    pub rms_norm_eps: f64,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
}

impl Config {
    /// Size of one head, D.
    pub fn head_dim(&self) -> i64 {
        self.hidden_size / self.num_attention_heads
    }
}
