//! A pass of generation over the network of `model`: rows of many requests in one batch, some of which decode, while others
//! fill the cache with their prompts.

use anyhow::Result;
use tch::{Device, Kind, Tensor};

use super::cache::{Cache, CacheView};
use super::scheduler::Chunk;
use crate::model::Model;
use crate::model::qwen2::{BlockWeights, ForwardInput, OuterWeights, WeightSource};

/// The weights of generation. They borrow the model, so that it cannot change meanwhile. On a CPU they hold a second copy of
/// all matrices, in the layout that small products are fastest with.
pub struct Weights<'a> {
    model: &'a Model,
    outer: OuterWeights,
    blocks: Vec<BlockWeights>,
}

impl<'a> Weights<'a> {
    /// The current weights of a model. Sharded weights are all-gathered, which takes all ranks at once, and freed with this.
    pub fn new(model: &'a Model) -> Result<Self> {
        tch::no_grad(|| {
            let mut reader = model.reader();
            let outer = model.outer_weights(&mut reader, false)?.reorder();
            let mut blocks = Vec::with_capacity(model.blocks());
            for layer in 0..model.blocks() {
                blocks.push(model.block_weights(&mut reader, layer, false)?.reorder());
            }
            Ok(Self { model, outer, blocks })
        })
    }

    pub fn model(&self) -> &Model {
        self.model
    }

    /// Compute type and device.
    pub fn options(&self) -> (Kind, Device) {
        (self.model.kind(), self.model.device())
    }
}

/// Fixed numbers of rows (deterministic mode); passes are filled up to them.
#[derive(Debug, Clone, Copy)]
pub struct FixedRows {
    /// Rows of a pass.
    pub rows: usize,
    /// Rows whose logits are computed.
    pub logits: usize,
}

/// Computes the chunks, fills the cache, and returns the logits (R, V) after each chunk that draws.
pub fn forward(
    weights: &Weights,
    cache: &Cache,
    chunks: &[Chunk],
    fixed: Option<FixedRows>,
    paged: bool,
) -> Result<Tensor> {
    let (kind, device) = weights.options();
    let (mut tokens, mut positions, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in chunks {
        tokens.extend(chunk.tokens.iter().map(|&token| i64::from(token)));
        positions.extend((chunk.position..chunk.position + chunk.tokens.len()).map(|position| position as i64));
        if chunk.draws {
            last.push(tokens.len() as i64 - 1);
        }
    }
    // The filling is a row that is computed anyway, also where no chunk draws.
    let filling = last.first().copied().unwrap_or(tokens.len() as i64 - 1);
    last.resize(fixed.map_or(last.len().max(1), |fixed| fixed.logits), filling);
    if let Some(fixed) = fixed {
        tokens.resize(fixed.rows, 0);
        positions.resize(fixed.rows, 0);
    }
    let view = CacheView::new(chunks, tokens.len());
    let view = if paged { view } else { view.flat(kind, device) };
    let on = |values: &[i64]| Tensor::from_slice(values).to_device(device);
    // The head reads only the rows whose next token is drawn.
    let (tokens, positions, last) = (on(&tokens), on(&positions), on(&last));
    let input = ForwardInput { tokens: &tokens, positions: &positions, read: Some(&last) };
    let Weights { model, outer, blocks } = weights;
    let states = model.forward(WeightSource::Held { outer, blocks }, &input, |layer, q, k, v| {
        cache.attend(layer, &view, (q, k, v), layer + 1 == blocks.len())
    })?;
    Ok(model.head(outer, &states))
}
