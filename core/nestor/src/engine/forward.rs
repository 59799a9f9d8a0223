//! A pass of generation over the one Qwen2 of `model`: rows of many requests side by side, some decoding, some filling
//! the cache with their prompts.

use anyhow::Result;
use tch::{Device, Kind, Tensor};

use super::cache::{Cache, View};
use super::scheduler::Chunk;
use crate::model::Model;
use crate::model::qwen2::{BlockWeights, OuterWeights};

/// A network as generation reads it. It borrows the model, so that the weights cannot change under it; on a CPU it holds
/// a second copy of all matrices, in the layout that small products are fastest with.
pub struct Weights<'a> {
    model: &'a Model,
    outer: OuterWeights,
    blocks: Vec<BlockWeights>,
}

impl<'a> Weights<'a> {
    /// The parameters of a model as they are now. Those that are spread over ranks are gathered, by all ranks at once, and
    /// freed with this.
    pub fn new(model: &'a Model) -> Result<Self> {
        tch::no_grad(|| {
            let mut reader = model.reader();
            let outer = model.outer_weights(&mut reader, false)?.packed();
            let mut blocks = Vec::with_capacity(model.blocks());
            for layer in 0..model.blocks() {
                blocks.push(model.block_weights(&mut reader, layer, false)?.packed());
            }
            Ok(Self { model, outer, blocks })
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.model
    }

    /// Where it computes, and in which type.
    pub fn options(&self) -> (Kind, Device) {
        (self.model.kind(), self.model.device())
    }
}

/// Row counts that are always the same (deterministic mode): what is missing is filled up.
#[derive(Debug, Clone, Copy)]
pub struct FixedRows {
    /// Rows of a pass.
    pub rows: usize,
    /// Rows whose logits are computed.
    pub logits: usize,
}

/// Computes the chunks, fills the cache, and gives the logits (R, V) after each chunk that draws.
pub fn forward(weights: &Weights, cache: &Cache, chunks: &[Chunk], fixed: Option<FixedRows>, paged: bool) -> Tensor {
    let (kind, device) = weights.options();
    let (mut tokens, mut positions, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in chunks {
        tokens.extend(chunk.tokens.iter().map(|&token| i64::from(token)));
        positions.extend((chunk.position..chunk.position + chunk.tokens.len()).map(|position| position as i64));
        if chunk.draws {
            last.push(tokens.len() as i64 - 1);
        }
    }
    // What fills up is a row that is computed anyway, also where no chunk draws.
    let filling = last.first().copied().unwrap_or(tokens.len() as i64 - 1);
    last.resize(fixed.map_or(last.len().max(1), |fixed| fixed.logits), filling);
    if let Some(fixed) = fixed {
        tokens.resize(fixed.rows, 0);
        positions.resize(fixed.rows, 0);
    }
    let view = View::new(chunks, tokens.len());
    let view = if paged { view } else { view.flat(kind, device) };
    let on = |values: &[i64]| Tensor::from_slice(values).to_device(device);
    let model = weights.model;
    let rope = model.rope(&on(&positions));
    // The head reads only the rows whose next token is drawn.
    let last = on(&last);
    let mut x = model.embed(&weights.outer, &on(&tokens));
    for (layer, block) in weights.blocks.iter().enumerate() {
        let read = (layer + 1 == weights.blocks.len()).then_some(&last);
        x = model.block(block, &x, &rope, read, |q, k, v| cache.attend(layer, &view, (q, k, v), read.is_some()));
    }
    model.head(&weights.outer, &x)
}
