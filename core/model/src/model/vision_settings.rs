//! A recipe's settings for a vision tower.

use std::cell::RefCell;

use anyhow::{Context, Result};
use nestor_images::Processor;

use super::vision::ImageCache;
use super::{Config, Model};
use crate::input_error;
use crate::recipe::{ModelSource, VisionTrain};

impl Config {
    /// The same network with the usual limits of images.
    pub fn without_image_limits(mut self) -> Self {
        if let Some(vision) = &mut self.vision {
            let Processor { min_pixels, max_pixels, .. } = Processor::default();
            vision.processor = Processor { min_pixels, max_pixels, ..vision.processor.clone() };
        }
        self
    }

    /// The same network with the recipe's limits of images.
    ///
    /// # Errors
    /// When the model has no vision tower, or the limits leave no image.
    pub fn with_image_limits(mut self, source: &ModelSource) -> Result<Self> {
        let Some(settings) = &source.vision else { return Ok(self) };
        let Some(vision) = &mut self.vision else {
            return Err(input_error!(
                "recipe key `model.vision`: the model ({}) has no vision tower; leave the section out, or take a \
                 Qwen2.5-VL model",
                self.architecture.model_type
            ));
        };
        let least = settings.min_pixels.unwrap_or(vision.processor.min_pixels);
        let most = settings.max_pixels.unwrap_or(vision.processor.max_pixels.max(least));
        vision.processor = vision
            .processor
            .clone()
            .with_pixels(least.min(most), most)
            .context("recipe keys `model.vision.min_pixels` and `model.vision.max_pixels`")?;
        Ok(self)
    }
}

impl Model {
    /// The same model with the recipe's limits of images, trained units of its tower, and room for embeddings. A
    /// `deterministic` run embeds each image alone.
    pub fn with_vision(self, source: &ModelSource, deterministic: bool) -> Result<Self> {
        if self.config.vision.is_none() && source.vision.is_none() {
            return Ok(self);
        }
        let config = self.config.clone().with_image_limits(source)?;
        let trained = match source.vision_train() {
            VisionTrain::All => self.units.len(),
            VisionTrain::Merger => self.merger_unit() + 1,
            VisionTrain::None => self.merger_unit(),
        };
        let settings = source.vision.clone().unwrap_or_default();
        let images = RefCell::new(ImageCache::new(settings.cache_tokens));
        Ok(Self { config, trained, images, encodes_alone: deterministic, ..self })
    }
}
