//! The sizes of a network, and the named shapes.

use anyhow::Result;
use nestor_plugin::suggest;

use super::arch::{Architecture, BlockParts, shape_names};
use super::rope_scaling::RopeScaling;
use super::vision_config::VisionConfig;
use crate::input_error;
use crate::recipe::NewModel;

/// The fields of a `config.json` that shape the network, under their Hugging Face names.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub architecture: &'static Architecture,
    pub block: BlockParts,
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
    /// A change of its frequencies.
    pub rope_scaling: Option<RopeScaling>,
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// A language model: logits of the next token.
    #[default]
    Tokens,
    /// A critic: one value of the state.
    Value,
}

/// More blocks than any model of this kind has; bounds the memory that a wrong `config.json` allocates.
const MOST_BLOCKS: i64 = 1_000;

/// More parameters than any model of this kind has.
const MOST_PARAMETERS: f64 = 1e13;

impl Config {
    /// Refuses a cache for sequences of up to this many tokens. Beyond `max_position_embeddings` dynamic rope scaling has other
    /// frequencies for each length, so that the keys of earlier tokens would have to be computed again.
    pub fn check_cached_length(&self, tokens: usize) -> Result<()> {
        let longest = self.max_position_embeddings;
        match self.rope_scaling {
            Some(RopeScaling::Dynamic { .. }) if tokens as i64 > longest => Err(input_error!(
                "a prompt and its response are together up to {tokens} tokens; a model with dynamic rope scaling generates up to \
                 its max_position_embeddings, {longest}"
            )),
            _ => Ok(()),
        }
    }

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

    /// The shape of a published model by its name, or a tiny one for trials. The sizes are those of the `config.json` that is
    /// published with the model.
    pub fn shape(name: &str) -> Result<Self> {
        let Some((architecture, shape)) = Architecture::of_shape(name) else {
            return Err(input_error!("unknown shape `{name}`{}", suggest(name, &shape_names())));
        };
        let [vocab, hidden, ffn, layers, heads, kv_heads] = shape.sizes;
        Ok(Self {
            architecture,
            block: architecture.usual_block()?,
            vocab_size: vocab,
            hidden_size: hidden,
            intermediate_size: ffn,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim: shape.head_dim,
            max_position_embeddings: shape.max_position_embeddings,
            rope_theta: shape.rope_theta,
            rope_scaling: None,
            rms_norm_eps: shape.rms_norm_eps,
            tie_word_embeddings: shape.tie_word_embeddings,
            initializer_range: 0.02,
            output: Output::Tokens,
            vision: architecture.tower.map(|of_shape| of_shape(name)),
        })
    }

    /// The network that a recipe's `model.new` describes, with a tokenizer of `vocab_size` ids. `image_ids` are those of a
    /// tower's tokens: start and end of an image, image, and video.
    pub fn of_new(new: &NewModel, vocab_size: i64, max_position_embeddings: i64, image_ids: [i64; 4]) -> Result<Self> {
        let vision = new.vision.as_ref().map(|vision| VisionConfig::of_new(new, vision, image_ids));
        let architecture = Architecture::of_new(vision.is_some());
        Ok(Self {
            architecture,
            block: architecture.usual_block()?,
            vocab_size,
            hidden_size: new.hidden_size,
            intermediate_size: new.intermediate_size,
            num_hidden_layers: new.layers,
            num_attention_heads: new.heads,
            num_key_value_heads: new.kv_heads,
            head_dim: None,
            max_position_embeddings,
            rope_theta: 1e6,
            rope_scaling: None,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: true,
            initializer_range: new.initializer_range,
            output: Output::Tokens,
            vision,
        })
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
            if let Some(RopeScaling::Dynamic { .. }) = self.rope_scaling {
                return Err(input_error!("dynamic rope scaling of a model that reads images is not supported"));
            }
        }
        self.rope_scaling.map_or(Ok(()), |scaling| scaling.check())?;
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
