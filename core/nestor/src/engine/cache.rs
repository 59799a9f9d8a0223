//! Keys and values of all blocks, page by page. The module `pages` assigns pages to requests.

use nestor_torch::{PagedCache, Segment};
use tch::{Device, Kind, Tensor};

use super::pages::PAGE;
use super::scheduler::Chunk;
use crate::model::Config;

/// The page of rows that belong to no request.
const FILLING: i64 = 0;

/// The KV cache. Grows on demand; freed only by `clear`.
#[derive(Debug, Default)]
pub struct Cache {
    blocks: Vec<BlockCache>,
    pages: i64,
}

/// Keys and values of one block.
#[derive(Debug)]
enum BlockCache {
    /// On a CPU, for the kernels of the shim.
    Paged(PagedCache),
    /// On other devices (2, P * PAGE, K, D): keys, then values. Unwritten places are 0, never NaN, because masked places are
    /// still multiplied (by 0).
    Flat(Tensor),
}

impl BlockCache {
    fn new(pages: i64, config: &Config, (kind, device): (Kind, Device), paged: bool) -> Self {
        let (heads, dim) = (config.num_key_value_heads, config.head_dim());
        if paged {
            return Self::Paged(PagedCache::new(pages, heads, dim, kind));
        }
        Self::Flat(Tensor::zeros([2, pages * PAGE as i64, heads, dim], (kind, device)))
    }

    /// Copies the pages of a smaller cache.
    fn copy_from(&mut self, other: &Self) {
        match (self, other) {
            (Self::Paged(own), Self::Paged(other)) => own.copy_from(other),
            (Self::Flat(own), Self::Flat(other)) => own.narrow(1, 0, other.size()[1]).copy_(other),
            _ => unreachable!("the blocks of a cache are of one kind"),
        }
    }
}

impl Cache {
    /// Frees the memory.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Makes room for this many pages. Grows by half at least, to grow seldom, but not beyond `limit`. `paged` selects the
    /// layout of the CPU's kernels.
    pub fn reserve(&mut self, pages: usize, limit: usize, config: &Config, options: (Kind, Device), paged: bool) {
        // In addition the page of filling rows.
        let (needed, limit) = (pages as i64 + 1, limit as i64 + 1);
        if needed <= self.pages {
            return;
        }
        let pages = needed.max(self.pages * 3 / 2).min(limit);
        for layer in 0..config.num_hidden_layers as usize {
            let mut larger = BlockCache::new(pages, config, options, paged);
            match self.blocks.get_mut(layer) {
                Some(block) => {
                    larger.copy_from(block);
                    *block = larger;
                }
                None => self.blocks.push(larger),
            }
        }
        self.pages = pages;
    }
}

/// The places of a pass's rows in the cache, and the places that they see.
#[derive(Debug)]
pub struct CacheView {
    /// Place of every row: page times `PAGE` plus offset.
    places: Vec<i64>,
    /// One per chunk.
    segments: Vec<Segment>,
    /// The last row of each chunk.
    ends: Vec<Segment>,
    /// Pages of the chunks, end to end.
    pages: Vec<i64>,
    /// Tensors for a cache that is not paged.
    flat: Option<FlatView>,
}

/// Tensors computed once for all blocks of a pass.
#[derive(Debug)]
struct FlatView {
    places: Tensor,
    /// Chunks that are attended in one call: all chunks of one row, or one chunk of many rows.
    groups: Vec<MaskedGroup>,
}

#[derive(Debug)]
struct MaskedGroup {
    /// The rows of the pass, (n * r).
    rows: Tensor,
    /// The places that these see, (n * length).
    seen: Tensor,
    /// 0 at visible places, minus infinity elsewhere: (n, 1, r, length).
    mask: Tensor,
}

impl CacheView {
    /// The view of a pass of `rows` rows: those of the chunks one after the other, then filling.
    pub fn new(chunks: &[Chunk], rows: usize) -> Self {
        let page = PAGE as i64;
        let (mut places, mut segments, mut pages) = (Vec::with_capacity(rows), Vec::new(), Vec::new());
        let mut ends = Vec::new();
        for chunk in chunks {
            let segment = Segment {
                row: places.len() as i64,
                rows: chunk.tokens.len() as i64,
                position: chunk.position as i64,
                pages: pages.len() as i64,
            };
            segments.push(segment);
            let before = segment.rows - 1;
            ends.push(Segment { row: segment.row + before, rows: 1, position: segment.position + before, ..segment });
            // Page 0 is for filling.
            pages.extend(chunk.pages.iter().map(|&page| i64::from(page) + 1));
            let own = &pages[pages.len() - chunk.pages.len()..];
            let positions = chunk.position..chunk.position + chunk.tokens.len();
            places.extend(positions.map(|position| own[position / PAGE] * page + (position % PAGE) as i64));
        }
        places.resize(rows, FILLING * page);
        Self { places, segments, ends, pages, flat: None }
    }

    /// Adds the tensors for a cache that is not paged.
    pub fn flat(mut self, kind: Kind, device: Device) -> Self {
        let single = |segment: &&Segment| segment.rows == 1;
        let (ones, many): (Vec<&Segment>, Vec<&Segment>) = self.segments.iter().partition(single);
        let mut groups = Vec::new();
        if !ones.is_empty() {
            groups.push(self.group(&ones, kind, device));
        }
        groups.extend(many.iter().map(|&segment| self.group(&[segment], kind, device)));
        self.flat = Some(FlatView { places: Tensor::from_slice(&self.places).to_device(device), groups });
        self
    }

    /// A group of segments that have the same number of rows.
    fn group(&self, segments: &[&Segment], kind: Kind, device: Device) -> MaskedGroup {
        let page = PAGE as i64;
        let rows = segments[0].rows;
        let longest = segments.iter().map(|s| s.position + rows).max().unwrap_or(1);
        let (mut at, mut seen, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        for s in segments {
            at.extend(s.row..s.row + rows);
            limits.extend(s.position..s.position + rows);
            let place = |t: i64| self.pages[(s.pages + t / page) as usize] * page + t % page;
            seen.extend((0..longest).map(|t| if t < s.position + rows { place(t) } else { FILLING * page }));
        }
        let on = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        let future = Tensor::arange(longest, (Kind::Int64, device)).unsqueeze(0).gt_tensor(&on(&limits).unsqueeze(1));
        let shape = [segments.len() as i64, 1, rows, longest];
        let mask = Tensor::zeros(shape, (kind, device)).masked_fill_(&future.view(shape), f64::NEG_INFINITY);
        MaskedGroup { rows: on(&at), seen: on(&seen), mask }
    }
}

impl Cache {
    /// Writes the rows' keys and values (T, K, D), and attends their queries (T, H, D) to the places that they see. With
    /// `ends` only the last rows of chunks are computed, and other rows may be undefined.
    pub fn attend(&self, layer: usize, view: &CacheView, (q, k, v): (&Tensor, &Tensor, &Tensor), ends: bool) -> Tensor {
        let segments = if ends { &view.ends } else { &view.segments };
        match (&self.blocks[layer], &view.flat) {
            (BlockCache::Paged(cache), _) => cache
                .write(&view.places, k, v)
                .and_then(|()| cache.attend(q, segments, &view.pages))
                // Panics as tch's operations do on wrong arguments: a view made of chunks fits its cache.
                .unwrap_or_else(|error| panic!("{error:#}")),
            (BlockCache::Flat(cache), Some(flat)) => flat_attend(cache, flat, q, k, v),
            (BlockCache::Flat(_), None) => unreachable!("a view of a cache that is not paged has tensors"),
        }
    }
}

fn flat_attend(cache: &Tensor, view: &FlatView, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let ([_, heads, dim], kv_heads) = (<[i64; 3]>::try_from(q.size()).unwrap_or_default(), k.size()[1]);
    for (half, new) in [k, v].into_iter().enumerate() {
        let _ = cache.select(0, half as i64).index_copy_(0, &view.places, new);
    }
    let mut out = q.zeros_like();
    for group in &view.groups {
        let [n, _, rows, length] = <[i64; 4]>::try_from(group.mask.size()).unwrap_or_default();
        let seen = |half| {
            let shape = [n, length, kv_heads, 1, dim];
            let gathered = cache.select(0, half).index_select(0, &group.seen).view(shape);
            let shared = gathered.expand([n, length, kv_heads, heads / kv_heads, dim], false);
            shared.reshape([n, length, heads, dim]).transpose(1, 2)
        };
        let q = q.index_select(0, &group.rows).view([n, rows, heads, dim]).transpose(1, 2);
        let attended =
            Tensor::scaled_dot_product_attention(&q, &seen(0), &seen(1), Some(&group.mask), 0.0, false, None, false);
        let _ = out.index_copy_(0, &group.rows, &attended.transpose(1, 2).reshape([n * rows, heads, dim]));
    }
    out
}
