//! The images of a plan's steps.

use serde::Serialize;

use crate::model::Config;
use crate::recipe::{Recipe, VisionTrain};

/// The images of a recipe, and its settings for the tower that reads them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Images {
    /// Parts of the tower that are trained.
    pub train: VisionTrain,
    /// Tokens of a step's image; 0 for a model without a tower.
    pub tokens: f64,
    /// Tokens of the largest image that a prompt has room for.
    pub largest: u64,
    /// Tokens of images whose embeddings are kept.
    pub cache_tokens: u64,
    /// True if the recipe's `min_pixels` gives the tokens of an image; else it is the largest in a mean prompt.
    pub least: bool,
}

impl Images {
    /// No images: a model without a tower.
    pub const NONE: Self = Self { train: VisionTrain::None, tokens: 0.0, largest: 0, cache_tokens: 0, least: false };

    /// The images of a recipe, beside prompts of `prompt` tokens on average, if the mean is given.
    pub fn new(recipe: &Recipe, config: &Config, prompt: Option<f64>) -> Self {
        let Some(vision) = &config.vision else { return Self::NONE };
        let settings = recipe.model.vision.clone().unwrap_or_default();
        let square = (vision.patch_size * vision.spatial_merge_size).pow(2) as u64;
        let most = (vision.processor.max_pixels / square).max(1);
        let longest = recipe.rollout.max_prompt_tokens as u64;
        // An image of one pixel is enlarged to the least size.
        let least = vision.processor.grid(1, 1).map_or(1, |grid| vision.processor.tokens(grid)) as f64;
        let (tokens, by_least) = match (settings.min_pixels, prompt) {
            (Some(_), Some(prompt)) => (least.min(prompt), true),
            (Some(_), None) => (least.min(longest as f64), true),
            (None, prompt) => (prompt.unwrap_or(longest as f64).min(most as f64), false),
        };
        Self {
            train: recipe.model.vision_train(),
            tokens,
            largest: most.min(longest),
            cache_tokens: settings.cache_tokens as u64,
            least: by_least,
        }
    }

    /// True for a model without a tower.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Tokens of an image where the recipe's `min_pixels` gives them; else 0.
    pub fn least_tokens(&self) -> f64 {
        if self.least { self.tokens } else { 0.0 }
    }

    /// The assumption about images, for people. None for a model without a tower.
    pub fn assumption(&self) -> Option<String> {
        let which = match self.least {
            true => "the least that model.vision.min_pixels allows",
            false => "the largest that a mean prompt and max_pixels allow",
        };
        let tokens = self.tokens;
        (tokens > 0.0)
            .then(|| format!("one image a step, of {tokens:.0} tokens ({which}), and no two steps show the same"))
    }
}
