//! The keys of a vision tower: `model.vision` and `model.new.vision`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Problem;

/// Reading of images, for a model with a vision tower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vision {
    /// The parts of the vision tower that are trained. By default all, and none beside `model.lora`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<VisionTrain>,
    /// Least pixels of an image in place of the model's own limit: smaller images are enlarged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_pixels: Option<u64>,
    /// Most pixels of an image in place of the model's own limit: larger images are reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pixels: Option<u64>,
    /// Tokens of images whose embeddings are kept; those that were unused the longest make room.
    #[serde(default = "default_image_cache_tokens")]
    pub cache_tokens: usize,
}

/// The settings of a recipe without the section.
impl Default for Vision {
    fn default() -> Self {
        Self { train: None, min_pixels: None, max_pixels: None, cache_tokens: default_image_cache_tokens() }
    }
}

fn default_image_cache_tokens() -> usize {
    1 << 17
}

/// The parts of a vision tower that are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VisionTrain {
    /// Patch embedding, blocks and merger.
    All,
    /// The merger, which maps the tower's states to the language model's embeddings.
    Merger,
    /// Nothing: the tower is frozen.
    None,
}

/// The vision tower of a small model. All of its blocks attend to the whole image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVision {
    /// Number of blocks.
    pub layers: i64,
    /// Width of the tower's residual stream.
    pub hidden_size: i64,
    /// Width of its feed-forward layers.
    pub intermediate_size: i64,
    /// Number of heads.
    pub heads: i64,
    /// Pixels of a patch's side; a square of 2 x 2 patches is one token.
    #[serde(default = "default_patch_size")]
    pub patch_size: i64,
}

fn default_patch_size() -> i64 {
    14
}

impl NewVision {
    /// Finds a size out of range.
    pub(super) fn problem(&self) -> Option<Problem> {
        let sizes = [
            ("layers", self.layers, 1_000),
            ("hidden_size", self.hidden_size, 1 << 16),
            ("intermediate_size", self.intermediate_size, 1 << 20),
            ("heads", self.heads, 1 << 10),
            ("patch_size", self.patch_size, 1 << 8),
        ];
        if let Some((key, value, most)) = sizes.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            return Some((format!("model.new.vision.{key}"), format!("must be from 1 to {most}, but is {value}")));
        }
        let Self { hidden_size, heads, .. } = self;
        (hidden_size % heads != 0 || (hidden_size / heads) % 4 != 0).then(|| {
            let message =
                format!("must be a multiple of 4 times `heads` ({heads}): rows and columns share a head's angles");
            ("model.new.vision.hidden_size".into(), format!("{message}, but is {hidden_size}"))
        })
    }
}
