//! A pass of generation over the network of `model`: rows of many requests in one batch, some of which decode, while others
//! fill the cache with their prompts.

use anyhow::Result;
use nestor_torch::ops::Ops;
use nestor_torch::upload;
use tch::{Device, Tensor};

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
pub fn forward(weights: &Weights, cache: &Cache, chunks: &[Chunk], fixed: Option<FixedRows>) -> Result<Tensor> {
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
    let Weights { model, outer, blocks } = weights;
    let device = model.device();
    // The head reads only the rows whose next token is drawn.
    let run = |tokens: &Tensor, positions: &Tensor, last: &Tensor, attend: &Attend| {
        let input = ForwardInput { tokens, positions, read: Some(last) };
        model.forward(WeightSource::Held { outer, blocks }, &input, |layer, q, k, v| attend(layer, [q, k, v]))
    };
    let states = match model.ops {
        Ops::Fused => {
            let [tokens, positions, last] = upload_all([&tokens, &positions, &last], device);
            run(&tokens, &positions, &last, &|layer, qkv| {
                cache.attend_paged(layer, &view, qkv, layer + 1 == blocks.len())
            })?
        }
        Ops::Generic => {
            let columns = view.sequences();
            let [tokens, positions, last, places, pages, numbers] =
                upload_all([&tokens, &positions, &last, &view.places, &view.pages, &columns.all()], device);
            let view = columns.on_device(&numbers, places, pages);
            run(&tokens, &positions, &last, &|layer, qkv| cache.attend_plain(layer, &view, qkv))?
        }
    };
    Ok(model.head(outer, &states))
}

/// Attention of one block's queries, keys and values.
type Attend<'a> = dyn Fn(usize, [&Tensor; 3]) -> Tensor + 'a;

/// Copies lists of numbers to a device in one piece.
fn upload_all<const N: usize>(lists: [&[i64]; N], device: Device) -> [Tensor; N] {
    let all = upload(&lists.concat(), device);
    let mut start = 0;
    lists.map(|list| {
        let length = list.len() as i64;
        start += length;
        all.narrow(0, start - length, length)
    })
}
