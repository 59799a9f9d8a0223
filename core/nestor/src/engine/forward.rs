//! A pass of generation over the network of `model`: rows of many requests in one batch, some of which decode, while others
//! fill the cache with their prompts.

use std::rc::Rc;

use anyhow::{Result, bail};
use nestor_torch::ops::Ops;
use nestor_torch::upload;
use tch::{Device, Kind, Tensor};

use super::cache::{Cache, CacheView, DecodeView};
use super::scheduler::Chunk;
use crate::model::decoder::{ForwardInput, WeightSource};
use crate::model::images::TowerSource;
use crate::model::unit_weights::{BlockWeights, OuterWeights};
use crate::model::vision::tower::TowerWeights;
use crate::model::vision::{ImagePart, ImageRows};
use crate::model::{Model, Rope};

/// The weights of generation. They borrow the model, so that it cannot change meanwhile. With the generic operations they are
/// the very tensors of the model. With the fused ones they hold a second copy of all matrices, in the layout that small
/// products are fastest with.
pub struct Weights<'a> {
    model: &'a Model,
    held: Rc<HeldWeights>,
}

/// Tensors of all units.
pub struct HeldWeights {
    pub outer: OuterWeights,
    pub blocks: Vec<BlockWeights>,
    pub tower: Option<TowerWeights>,
    /// Addresses of all tensors that a recorded pass reads, in a fixed order.
    pub addresses: Vec<usize>,
}

impl<'a> Weights<'a> {
    /// The current weights of a model. Sharded weights are all-gathered, which takes all ranks at once, and freed with this
    /// and with the recordings that read them.
    pub fn new(model: &'a Model) -> Result<Self> {
        tch::no_grad(|| {
            let mut reader = model.reader();
            let fused = model.ops == Ops::Fused;
            let outer = model.outer_weights(&mut reader, false)?;
            let outer = if fused { outer.reorder() } else { outer };
            let mut blocks = Vec::with_capacity(model.blocks());
            for layer in 0..model.blocks() {
                let block = model.block_weights(&mut reader, layer, false)?;
                blocks.push(if fused { block.reorder() } else { block });
            }
            let tensors = blocks.iter().flat_map(BlockWeights::tensors).chain(outer.tensors());
            let addresses = tensors.map(|tensor| tensor.data_ptr() as usize).collect();
            let tower = model.tower_weights(&mut reader)?;
            Ok(Self { model, held: Rc::new(HeldWeights { outer, blocks, tower, addresses }) })
        })
    }

    pub fn model(&self) -> &Model {
        self.model
    }

    pub fn held(&self) -> &Rc<HeldWeights> {
        &self.held
    }
}

/// Rows of a pass whose tokens are on the device only.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The rows.
    pub rows: &'a [i64],
    /// The place of each row's token among `drawn`.
    pub sources: &'a [i64],
    /// Tokens that the pass before drew.
    pub drawn: &'a Tensor,
}

/// Fixed numbers of rows (deterministic mode); passes are filled up to them.
#[derive(Debug, Clone, Copy)]
pub struct FixedRows {
    /// Rows of a pass.
    pub rows: usize,
    /// Rows whose logits are computed.
    pub logits: usize,
}

/// Computes the chunks, fills the cache, and returns the logits (R, V) after each chunk that draws. `feed` names the rows of
/// fed chunks, if there are any; only the generic operations take it.
pub fn forward(
    weights: &Weights,
    cache: &Cache,
    chunks: &[Chunk],
    fixed: Option<FixedRows>,
    feed: Option<Feed>,
) -> Result<Tensor> {
    let (mut tokens, mut last) = (Vec::new(), Vec::new());
    for chunk in chunks {
        tokens.extend(chunk.tokens.iter().map(|&token| i64::from(token)));
        if chunk.draws {
            last.push(tokens.len() as i64 - 1);
        }
    }
    // The filling is a row that is computed anyway, also where no chunk draws.
    let filling = last.first().copied().unwrap_or(tokens.len() as i64 - 1);
    last.resize(fixed.map_or(last.len().max(1), |fixed| fixed.logits), filling);
    if let Some(fixed) = fixed {
        tokens.resize(fixed.rows, 0);
    }
    let positions = rotary_positions(chunks, tokens.len());
    let view = CacheView::new(chunks, tokens.len());
    let Weights { model, held } = weights;
    let HeldWeights { outer, blocks, tower, .. } = &**held;
    let device = model.device();
    let shown = images_of(chunks, device);
    let embeddings = match (&shown, tower) {
        (Some(rows), Some(tower)) => model.joined_embeddings(&rows.images, TowerSource::Held(tower))?,
        (Some(_), None) => bail!("the model has no vision tower for the images of a request"),
        (None, _) => None,
    };
    let images = shown.as_ref().zip(embeddings.as_ref());
    let rope_of = |positions: &Tensor| match positions.size()[0] {
        rows if rows == tokens.len() as i64 => model.rope(positions),
        _ => model.rope(&positions.view([3, -1])),
    };
    // The head reads only the rows whose next token is drawn.
    let run = |tokens: &Tensor, rope: &Rope, last: &Tensor, decodes: bool, attend: &Attend| {
        let input = ForwardInput { tokens, images, rope, decodes, keys: None, read: Some(last) };
        model.forward(WeightSource::Held { outer, blocks }, &input, |layer, q, k, v| attend(layer, [q, k, v]))
    };
    // Rows in fixed numbers keep to one attention: a kernel of their own would round in another way.
    let decoding = if fixed.is_none() { cache.paged_rows(chunks) } else { 0 };
    let states = match model.ops {
        Ops::Fused => {
            let [tokens, positions, last] = upload_all([&tokens, &positions, &last], device);
            run(&tokens, &rope_of(&positions), &last, false, &|layer, qkv| {
                cache.attend_paged(layer, &view, qkv, layer + 1 == blocks.len())
            })?
        }
        Ops::Generic if decoding == tokens.len() => {
            let [pages, lengths] = view.page_table(decoding);
            let [tokens, positions, last, places, pages, lengths] =
                upload_all([&tokens, &positions, &last, &view.places, &pages, &lengths], device);
            // Attention counts in int32.
            let [page_table, lengths] = [pages, lengths].map(|numbers| numbers.to_kind(Kind::Int));
            let page_table = page_table.view([lengths.size()[0], -1]);
            let view = DecodeView { places: &places, page_table: &page_table, lengths: &lengths };
            let tokens = with_fed(tokens, feed);
            let rope = rope_of(&positions);
            run(&tokens, &rope, &last, true, &|layer, qkv| cache.attend_decoding(layer, view, qkv, &rope))?
        }
        Ops::Generic => {
            let columns = view.sequences(decoding);
            let [pages, lengths] = view.page_table(decoding);
            let lists = [&tokens, &positions, &last, &view.places, &columns.pages, &columns.all(), &pages, &lengths];
            let [tokens, positions, last, places, seen, numbers, pages, lengths] =
                upload_all(lists.map(|list| &list[..]), device);
            let [page_table, lengths] = [pages, lengths].map(|numbers| numbers.to_kind(Kind::Int));
            let decoding = (decoding > 0).then(|| (page_table.view([decoding as i64, -1]), lengths));
            let view = columns.on_device(&numbers, places, seen, decoding);
            let tokens = with_fed(tokens, feed);
            run(&tokens, &rope_of(&positions), &last, false, &|layer, qkv| cache.attend_plain(layer, &view, qkv))?
        }
    };
    Ok(model.logits(outer, &states))
}

/// Rotary positions of a pass's rows: (T), or where a request shows images those of time, row and column, (3 T). Rows without
/// a chunk have position 0.
fn rotary_positions(chunks: &[Chunk], rows: usize) -> Vec<i64> {
    let places = |chunk: &Chunk| (chunk.position as i64..).take(chunk.tokens.len());
    let axis = |axis: usize| {
        let mut positions: Vec<i64> = Vec::with_capacity(rows);
        for chunk in chunks {
            match &chunk.rotary[..] {
                [] => positions.extend(places(chunk)),
                rotary => positions.extend(rotary.iter().map(|axes| axes[axis])),
            }
        }
        positions.resize(rows, 0);
        positions
    };
    let axes = if chunks.iter().all(|chunk| chunk.rotary.is_empty()) { 1 } else { 3 };
    (0..axes).flat_map(axis).collect()
}

/// The images among a pass's rows.
fn images_of(chunks: &[Chunk], device: Device) -> Option<ImageRows> {
    let mut start = 0;
    let mut parts = Vec::new();
    for chunk in chunks {
        parts.extend(chunk.images.iter().map(|own| ImagePart {
            row: start + own.row,
            first: own.first,
            count: own.count,
            image: &own.image,
        }));
        start += chunk.tokens.len();
    }
    ImageRows::new(parts.into_iter(), device)
}

/// The tokens of a pass's rows, those that only the device has included.
fn with_fed(tokens: Tensor, feed: Option<Feed>) -> Tensor {
    let Some(Feed { rows, sources, drawn }) = feed else { return tokens };
    let [rows, sources] = upload_all([rows, sources], tokens.device());
    tokens.index_copy(0, &rows, &drawn.index_select(0, &sources).to_kind(Kind::Int64))
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
