//! Embeddings of images without gradients, from the cache or by a pass of the tower.

use std::collections::HashMap;

use anyhow::{Context, Result};
use nestor_images::{ImageKey, KeyedImage};
use nestor_torch::upload;
use tch::{Tensor, no_grad};

use super::linear::{Linear, Tape};
use super::vision::plan::TowerPlan;
use super::vision::tower::{self, Merger, TowerBlock, TowerInput, TowerWeights};
use super::{Model, VisionConfig};
use crate::ranks::exchange;
use crate::shard::{HeldUnits, UnitReader};

/// Patches of one pass of the tower, unless a single image has more: bounds its activations.
pub const PASS_PATCHES: u64 = 16_384;

/// The weights of a tower's pass.
pub enum TowerSource<'a, 'm> {
    /// Read unit by unit.
    Read(&'a mut UnitReader<'m>),
    /// Held by the caller.
    Held(&'a TowerWeights),
}

impl TowerSource<'_, '_> {
    fn block<T>(
        &mut self,
        model: &Model,
        c: &VisionConfig,
        number: usize,
        run: impl FnOnce(&TowerBlock) -> T,
    ) -> Result<T> {
        match self {
            Self::Held(weights) => Ok(run(&weights.blocks[number])),
            Self::Read(reader) => {
                let flat = reader.unit(model.tower_block_unit(number))?;
                Ok(run(&TowerBlock::new(c, &flat, false)))
            }
        }
    }

    fn merger<T>(&mut self, model: &Model, c: &VisionConfig, run: impl FnOnce(&Merger) -> T) -> Result<T> {
        match self {
            Self::Held(weights) => Ok(run(&weights.merger)),
            Self::Read(reader) => {
                let flat = reader.unit(model.merger_unit())?;
                Ok(run(&Merger::new(c, model.config.hidden_size, &flat, false)))
            }
        }
    }

    fn patch_embed<T>(&mut self, model: &Model, c: &VisionConfig, run: impl FnOnce(&Linear) -> T) -> Result<T> {
        match self {
            Self::Held(weights) => Ok(run(&weights.patch_embed)),
            Self::Read(reader) => {
                let flat = reader.unit(model.patch_embed_unit(c))?;
                Ok(run(&tower::patch_embedding(c, &flat)))
            }
        }
    }
}

impl Model {
    /// The merger's unit; the units of the tower's blocks and of the patch embedding follow it.
    pub fn merger_unit(&self) -> usize {
        1 + self.blocks()
    }

    /// The unit of a block of the tower.
    pub fn tower_block_unit(&self, block: usize) -> usize {
        self.merger_unit() + 1 + block
    }

    /// The unit of the patch embedding.
    pub fn patch_embed_unit(&self, vision: &VisionConfig) -> usize {
        self.tower_block_unit(vision.depth as usize)
    }

    /// The tower's configuration.
    ///
    /// # Errors
    /// When the model reads no images.
    pub fn vision(&self) -> Result<&VisionConfig> {
        self.config.vision.as_ref().context("the model has no vision tower")
    }

    /// All weights of the tower, whole; none where the model reads no images.
    pub fn tower_weights(&self, reader: &mut UnitReader) -> Result<Option<TowerWeights>> {
        let Some(c) = &self.config.vision else { return Ok(None) };
        let merger = Merger::new(c, self.config.hidden_size, &reader.unit(self.merger_unit())?, false);
        let mut blocks = Vec::new();
        for block in 0..c.depth as usize {
            blocks.push(TowerBlock::new(c, &reader.unit(self.tower_block_unit(block))?, false));
        }
        let patch_embed = tower::patch_embedding(c, &reader.unit(self.patch_embed_unit(c))?);
        Ok(Some(TowerWeights { merger, blocks, patch_embed }))
    }

    /// Embeddings of images, each given once: (M, E) each, without gradients. Takes them from the cache, and computes and keeps those that it
    /// lacks. Where the weights are sharded and read, all ranks call it together, each with its own images.
    pub fn image_embeddings(&self, images: &[KeyedImage], mut source: TowerSource) -> Result<Vec<Tensor>> {
        let Some(c) = &self.config.vision else { return Ok(Vec::new()) };
        let missing: Vec<&KeyedImage> = {
            let cache = self.images.borrow();
            images.iter().filter(|image| !cache.embeddings.contains(image.key())).collect()
        };
        let mut made: HashMap<ImageKey, Tensor> = HashMap::new();
        let passes = self.tower_passes(c, &missing)?;
        for number in 0..self.agreed_passes(passes.len(), &source)? {
            let own = passes.get(number).map(Vec::as_slice).unwrap_or_default();
            made.extend(no_grad(|| self.encode(c, own, &mut source))?);
        }
        let mut cache = self.images.borrow_mut();
        cache.counters.encoded += made.len() as u64;
        cache.counters.reused += (images.len() - missing.len()) as u64;
        let mut embeddings = Vec::with_capacity(images.len());
        for image in images {
            let kept = cache.embeddings.get(image.key());
            let embedding = kept.or_else(|| made.get(&image.key()).map(Tensor::shallow_clone));
            embeddings.push(embedding.context("every image is embedded")?);
        }
        for (key, embedding) in &made {
            cache.embeddings.put(*key, embedding);
        }
        Ok(embeddings)
    }

    /// The same with all embeddings end to end, (M, E). None where there is no image.
    pub fn joined_embeddings(&self, images: &[KeyedImage], source: TowerSource) -> Result<Option<Tensor>> {
        let embeddings = self.image_embeddings(images, source)?;
        Ok((!embeddings.is_empty()).then(|| Tensor::cat(&embeddings, 0)))
    }

    /// The tower's states of images before the merger, (P, W) end to end, and the places of their tokens among those of the
    /// merger, (M). For a merger that is trained: the states stay those of a frozen tower. None where there is no image.
    pub fn tower_states(&self, images: &[KeyedImage], reader: &mut UnitReader) -> Result<Option<(Tensor, Tensor)>> {
        let c = self.vision()?;
        let mut source = TowerSource::Read(reader);
        let missing: Vec<&KeyedImage> = {
            let cache = self.images.borrow();
            images.iter().filter(|image| !cache.states.contains(image.key())).collect()
        };
        let mut made: HashMap<ImageKey, Tensor> = HashMap::new();
        // Each alone: the states of one image then have the order of a pass of their own.
        for number in 0..self.agreed_passes(missing.len(), &source)? {
            let own = missing.get(number).copied();
            let input = own.map(|image| TowerInput::new(c, &[image], self.kind(), self.device())).transpose()?;
            let states = no_grad(|| self.states_of(c, input.as_ref(), &mut source))?;
            made.extend(own.map(KeyedImage::key).zip(states));
        }
        let (mut states, mut places, mut first) = (Vec::new(), Vec::new(), 0);
        let mut cache = self.images.borrow_mut();
        for image in images {
            let kept = cache.states.get(image.key()).or_else(|| made.get(&image.key()).map(Tensor::shallow_clone));
            states.push(kept.context("every image has states")?);
            let plan = TowerPlan::new(c, &[c.grid(image)?]);
            places.extend(plan.places().into_iter().map(|place| first + place));
            first += plan.squares.len() as i64;
        }
        made.iter().for_each(|(key, own)| cache.states.put(*key, own));
        Ok((!states.is_empty()).then(|| (Tensor::cat(&states, 0), upload(&places, self.device()))))
    }

    /// Drops embeddings that belong to weights which have changed.
    pub fn weights_changed(&self) {
        if self.trained > self.merger_unit() {
            self.images.borrow_mut().embeddings.clear();
        }
    }

    /// Images of each pass.
    fn tower_passes<'a>(&self, c: &VisionConfig, images: &[&'a KeyedImage]) -> Result<Vec<Vec<&'a KeyedImage>>> {
        let (mut passes, mut patches): (Vec<Vec<&KeyedImage>>, u64) = (Vec::new(), u64::MAX);
        for &image in images {
            let grid = c.grid(image)?;
            let own = u64::from(grid.rows) * u64::from(grid.cols);
            patches = patches.saturating_add(own);
            if patches > PASS_PATCHES || self.encodes_alone {
                passes.push(Vec::new());
                patches = own;
            }
            if let Some(pass) = passes.last_mut() {
                pass.push(image);
            }
        }
        Ok(passes)
    }

    /// The most passes that a rank needs, where all ranks take part in each.
    fn agreed_passes(&self, own: usize, source: &TowerSource) -> Result<usize> {
        match (source, &self.units) {
            (TowerSource::Read(_), HeldUnits::Sharded { ranks, .. }) => {
                Ok(exchange(&*ranks.comm, Ok(own))?.into_iter().max().unwrap_or(own))
            }
            _ => Ok(own),
        }
    }

    /// Embeddings of some images by one pass; none where this rank has no image for it.
    fn encode(
        &self,
        c: &VisionConfig,
        images: &[&KeyedImage],
        source: &mut TowerSource,
    ) -> Result<Vec<(ImageKey, Tensor)>> {
        let input = match images {
            [] => None,
            _ => Some(TowerInput::new(c, images, self.kind(), self.device())?),
        };
        let states = self.states_of(c, input.as_ref(), source)?;
        let embeddings = source.merger(self, c, |merger| {
            let (input, states) = input.as_ref().zip(states)?;
            let all = tower::merge(c, self.ops, merger, input.places(), &states, &mut Tape::off());
            Some(all.split_with_sizes(input.tokens.as_slice(), 0))
        })?;
        // Copies, because a cache that keeps a part of a tensor keeps all of it.
        let own = images.iter().zip(embeddings.into_iter().flatten());
        Ok(own.map(|(image, embedding)| (image.key(), embedding.copy())).collect())
    }

    /// The states (P, W) after the tower's last block; none without an input.
    fn states_of(
        &self,
        c: &VisionConfig,
        input: Option<&TowerInput>,
        source: &mut TowerSource,
    ) -> Result<Option<Tensor>> {
        let mut x =
            source.patch_embed(self, c, |embed| input.map(|input| embed.apply(&input.patches, &mut Tape::off())))?;
        for number in 0..c.depth as usize {
            x = source.block(self, c, number, |weights| {
                let (input, x) = input.zip(x)?;
                Some(tower::block(c, self.ops, weights, (number, input), &x, &mut Tape::off()))
            })?;
        }
        Ok(x)
    }
}
