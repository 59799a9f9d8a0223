//! Keys and values of all blocks, page by page. The module `pages` assigns pages to requests.

use nestor_torch::generic::{Sequences, varlen_attention};
use nestor_torch::ops::Ops;
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
    /// For the fused operations, which attend pages where they are.
    Paged(PagedCache),
    /// For libtorch's own operations, which attend a copy of the pages: keys, then values, (2, P, PAGE, K, D).
    Plain(Tensor),
}

impl BlockCache {
    fn new(pages: i64, config: &Config, (kind, device): (Kind, Device), ops: Ops) -> Self {
        let (heads, dim) = (config.num_key_value_heads, config.head_dim());
        match ops {
            Ops::Fused => Self::Paged(PagedCache::new(pages, heads, dim, kind)),
            Ops::Generic => Self::Plain(Tensor::zeros([2, pages, PAGE as i64, heads, dim], (kind, device))),
        }
    }

    /// Copies the pages of a smaller cache.
    fn copy_from(&mut self, other: &Self) {
        match (self, other) {
            (Self::Paged(own), Self::Paged(other)) => own.copy_from(other),
            (Self::Plain(own), Self::Plain(other)) => own.narrow(1, 0, other.size()[1]).copy_(other),
            _ => unreachable!("the blocks of a cache are of one kind"),
        }
    }
}

impl Cache {
    /// Frees the memory.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Makes room for this many pages. Grows by half at least, to grow seldom, but not beyond `limit`. On a GPU it takes the
    /// limit at once: growing would copy, and leave gaps that nothing else fits into.
    pub fn reserve(&mut self, pages: usize, limit: usize, config: &Config, options: (Kind, Device), ops: Ops) {
        // In addition the page of filling rows.
        let (needed, limit) = (pages as i64 + 1, limit as i64 + 1);
        if needed <= self.pages {
            return;
        }
        let pages = if ops == Ops::Generic { limit } else { needed.max(self.pages * 3 / 2).min(limit) };
        for layer in 0..config.num_hidden_layers as usize {
            let mut larger = BlockCache::new(pages, config, options, ops);
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
    pub places: Vec<i64>,
    /// One per chunk.
    segments: Vec<Segment>,
    /// The last row of each chunk.
    ends: Vec<Segment>,
    /// Pages of the chunks, end to end.
    pub pages: Vec<i64>,
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
        Self { places, segments, ends, pages }
    }

    /// The chunks as sequences of attention: for each the start of its rows, the start of its pages' tokens, and the number
    /// of tokens that it sees; then the two ends.
    pub fn sequences(&self) -> SequenceColumns {
        let (page, last) = (PAGE as i64, self.segments.last());
        let column = |f: &dyn Fn(&Segment) -> i64| -> Vec<i64> { self.segments.iter().map(f).collect() };
        let mut queries = column(&|s| s.row);
        queries.push(last.map_or(0, |s| s.row + s.rows));
        let mut keys = column(&|s| s.pages * page);
        keys.push(self.pages.len() as i64 * page);
        SequenceColumns { queries, keys, used: column(&|s| s.position + s.rows) }
    }
}

/// Starts of queries and keys of sequences with their ends, (n + 1) each, and the used keys (n).
#[derive(Debug)]
pub struct SequenceColumns {
    pub queries: Vec<i64>,
    pub keys: Vec<i64>,
    pub used: Vec<i64>,
}

impl SequenceColumns {
    /// The three columns, end to end.
    pub fn all(&self) -> Vec<i64> {
        [&self.queries[..], &self.keys, &self.used].concat()
    }

    /// The view of a pass on the device, where `numbers` are these columns.
    pub fn on_device(&self, numbers: &Tensor, places: Tensor, pages: Tensor) -> DeviceView {
        let lengths = [&self.queries, &self.keys, &self.used].map(|column| column.len() as i64);
        // Attention counts in int32.
        let columns = numbers.to_kind(Kind::Int).split_with_sizes(lengths, 0);
        let [queries, keys, used] = columns.try_into().unwrap_or_else(|_| unreachable!("a split has three parts"));
        let rows = self.queries.windows(2).map(|ends| ends[1] - ends[0]);
        DeviceView {
            places,
            pages,
            queries: Sequences { starts: queries, used: None, longest: rows.max().unwrap_or(0) },
            keys: Sequences { starts: keys, used: Some(used), longest: self.used.iter().copied().max().unwrap_or(0) },
        }
    }
}

/// A view's numbers on the device, computed once for all blocks of a pass.
#[derive(Debug)]
pub struct DeviceView {
    /// Place of every row, (T).
    pub places: Tensor,
    /// Pages of the sequences, end to end.
    pub pages: Tensor,
    pub queries: Sequences,
    /// Starts count the tokens of all `pages`.
    pub keys: Sequences,
}

impl Cache {
    /// Writes the rows' keys and values (T, K, D), and attends their queries (T, H, D) to the pages where they are. With
    /// `ends` only the last rows of chunks are computed, and other rows are undefined.
    ///
    /// # Panics
    /// When the cache has the plain layout.
    pub fn attend_paged(&self, layer: usize, view: &CacheView, [q, k, v]: [&Tensor; 3], ends: bool) -> Tensor {
        let segments = if ends { &view.ends } else { &view.segments };
        let BlockCache::Paged(cache) = &self.blocks[layer] else { unreachable!("the cache has pages") };
        let attended = cache.write(&view.places, k, v).and_then(|()| cache.attend(q, segments, &view.pages));
        // Panics as tch's operations do on wrong arguments: a view made of chunks fits its cache.
        attended.unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// The same in the plain layout: copies the pages that the pass sees once, at their K heads, and attends decoding rows
    /// and prompts in one call.
    ///
    /// # Panics
    /// When the cache has pages.
    pub fn attend_plain(&self, layer: usize, view: &DeviceView, [q, k, v]: [&Tensor; 3]) -> Tensor {
        let BlockCache::Plain(cache) = &self.blocks[layer] else { unreachable!("the cache has the plain layout") };
        let (heads, dim) = (k.size()[1], k.size()[2]);
        let by_token = |pages: &Tensor| pages.view([2, -1, heads, dim]);
        for (half, new) in [k, v].into_iter().enumerate() {
            let _ = by_token(cache).select(0, half as i64).index_copy_(0, &view.places, new);
        }
        let seen = by_token(&cache.index_select(1, &view.pages));
        varlen_attention([q, &seen.select(0, 0), &seen.select(0, 1)], &view.queries, &view.keys)
    }
}
