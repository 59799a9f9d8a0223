//! Keys and values of all blocks, page by page. The module `pages` assigns pages to requests.

use nestor_torch::decoding::{attends_pages, rotate_into_cache, write_into_cache};
use nestor_torch::generic::{decode_attention, varlen_attention};
use nestor_torch::ops::Ops;
use nestor_torch::packed::Sequences;
use nestor_torch::{PagedCache, Segment};
use tch::{Device, Kind, Tensor};

use super::pages::PAGE;
use super::scheduler::{Chunk, decoding_rows};
use crate::model::{Config, Rope};

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

/// Cache of one block that a decoding pass reads and writes, and the places of its rows.
#[derive(Debug, Clone, Copy)]
pub struct DecodeView<'a> {
    /// Place of every row, (B) int64.
    pub places: &'a Tensor,
    /// Pages of every row's sequence, (B, N) int32.
    pub page_table: &'a Tensor,
    /// Tokens that every row sees, itself included, (B) int32; 0 for filling.
    pub lengths: &'a Tensor,
}

impl DecodeView<'_> {
    /// Rotates queries (B, H, D) of decoding rows, where they are, and keys (B, K, D). Writes keys and values to a block's
    /// cache, and attends the queries to it.
    pub fn attend(&self, cache: &Tensor, [q, k, v]: [&Tensor; 3], rope: &Rope) -> Tensor {
        rotate_into_cache([q, k, v], [&rope.cos, &rope.sin], cache, self.places);
        decode_attention(q, cache, self.page_table, self.lengths)
    }
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

    /// The blocks in the plain layout; none in that of pages.
    pub fn plain(&self) -> Vec<&Tensor> {
        let mut plain = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            if let BlockCache::Plain(cache) = block {
                plain.push(cache);
            }
        }
        plain
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

    /// The chunks behind the first `decoding` rows as sequences of attention: for each the start of its rows and of its
    /// pages' tokens, both counted from the first such chunk, and the number of tokens that it sees; then the two ends.
    pub fn sequences(&self, decoding: usize) -> SequenceColumns {
        let (page, segments) = (PAGE as i64, &self.segments[decoding..]);
        let first = segments.first().map_or(self.pages.len(), |s| s.pages as usize);
        let column = |f: &dyn Fn(&Segment) -> i64| -> Vec<i64> { segments.iter().map(f).collect() };
        let mut queries = column(&|s| s.row - decoding as i64);
        queries.push(segments.last().map_or(0, |s| s.row + s.rows - decoding as i64));
        let mut keys = column(&|s| (s.pages - first as i64) * page);
        keys.push((self.pages.len() - first) as i64 * page);
        SequenceColumns { queries, keys, used: column(&|s| s.position + s.rows), pages: self.pages[first..].to_vec() }
    }
}

impl CacheView {
    /// For the first `rows` chunks, of one row each: the pages of each row, filled up to those of the longest, then the
    /// number of tokens that each row sees.
    pub fn page_table(&self, rows: usize) -> [Vec<i64>; 2] {
        let ends = self.segments.iter().skip(1).map(|s| s.pages).chain([self.pages.len() as i64]);
        let segments = &self.segments[..rows];
        let own = || segments.iter().zip(ends.clone()).map(|(s, end)| &self.pages[s.pages as usize..end as usize]);
        let most = own().map(<[i64]>::len).max().unwrap_or(0);
        let table = own().flat_map(|pages| pages.iter().copied().chain([FILLING].repeat(most - pages.len()))).collect();
        [table, segments.iter().map(|s| s.position + 1).collect()]
    }
}

/// Starts of queries and keys of sequences with their ends, (n + 1) each, the used keys (n), and the sequences' pages.
#[derive(Debug)]
pub struct SequenceColumns {
    pub queries: Vec<i64>,
    pub keys: Vec<i64>,
    pub used: Vec<i64>,
    pub pages: Vec<i64>,
}

impl SequenceColumns {
    /// The three columns, end to end.
    pub fn all(&self) -> Vec<i64> {
        [&self.queries[..], &self.keys, &self.used].concat()
    }

    /// The view of a pass on the device, where `numbers` are these columns, for chunks behind the rows of `decoding`.
    pub fn on_device(
        &self,
        numbers: &Tensor,
        places: Tensor,
        pages: Tensor,
        decoding: Option<(Tensor, Tensor)>,
    ) -> DeviceView {
        let lengths = [&self.queries, &self.keys, &self.used].map(|column| column.len() as i64);
        // Attention counts in int32.
        let columns = numbers.to_kind(Kind::Int).split_with_sizes(lengths, 0);
        let [queries, keys, used] = columns.try_into().unwrap_or_else(|_| unreachable!("a split has three parts"));
        let rows = self.queries.windows(2).map(|ends| ends[1] - ends[0]);
        DeviceView {
            places,
            decoding,
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
    /// Pages (B, N) and lengths (B) of the first B rows, which decode, int32. The sequences are behind them.
    pub decoding: Option<(Tensor, Tensor)>,
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

    /// The same in the plain layout. Rows that decode read the pages where they are. Prompts attend a copy of theirs.
    ///
    /// # Panics
    /// When the cache has pages.
    pub fn attend_plain(&self, layer: usize, view: &DeviceView, [q, k, v]: [&Tensor; 3]) -> Tensor {
        let BlockCache::Plain(cache) = &self.blocks[layer] else { unreachable!("the cache has the plain layout") };
        let (heads, dim) = (k.size()[1], k.size()[2]);
        write_into_cache([k, v], cache, &view.places);
        let seen = cache.index_select(1, &view.pages).view([2, -1, heads, dim]);
        let sequences =
            |q: &Tensor| varlen_attention([q, &seen.select(0, 0), &seen.select(0, 1)], &view.queries, &view.keys);
        let Some((page_table, lengths)) = &view.decoding else { return sequences(q) };
        let (rows, all) = (lengths.size()[0], q.size()[0]);
        let decoded = decode_attention(&q.narrow(0, 0, rows), cache, page_table, lengths);
        Tensor::cat(&[decoded, sequences(&q.narrow(0, rows, all - rows))], 0)
    }

    /// Returns true where rows that decode attend to the pages where they are, on any device.
    pub fn attends_pages(&self) -> bool {
        matches!(self.blocks.first(), Some(BlockCache::Plain(cache)) if attends_pages(cache))
    }

    /// Number of first rows of a pass that attend to the pages where they are.
    pub fn paged_rows(&self, chunks: &[Chunk]) -> usize {
        if self.attends_pages() { decoding_rows(chunks) } else { 0 }
    }

    /// As `attend_plain`, for a pass of rows that decode: reads the pages where they are.
    ///
    /// # Panics
    /// When the cache has pages of the fused operations.
    pub fn attend_decoding(&self, layer: usize, view: DecodeView, qkv: [&Tensor; 3], rope: &Rope) -> Tensor {
        let BlockCache::Plain(cache) = &self.blocks[layer] else { unreachable!("the cache has the plain layout") };
        view.attend(cache, qkv, rope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::pages::PageId;
    use nestor_torch::generic;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn decoding_rows_see_what_the_plain_attention_shows_them() {
        let options = (Kind::Float, Device::Cpu);
        let config = Config::shape("tiny").expect("a shape");
        let (heads, kv_heads, dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim());
        tch::manual_seed(1);
        let tokens = [1u32];
        let chunk = |position: usize, pages: &[PageId]| Chunk {
            id: 0,
            fed: false,
            tokens: tokens.to_vec(),
            position,
            rotary: Vec::new(),
            images: Vec::new(),
            pages: pages.to_vec(),
            draws: true,
        };
        // The first row of a page, its last, and one in the middle of a longer sequence.
        let chunks = [chunk(PAGE, &[4, 0]), chunk(PAGE - 1, &[2]), chunk(2 * PAGE + 5, &[5, 1, 3])];
        let rows = chunks.len() as i64;
        let qkv = [heads, kv_heads, kv_heads].map(|n| Tensor::randn([rows, n, dim], options));
        let qkv = [&qkv[0], &qkv[1], &qkv[2]];

        let mut cache = Cache::default();
        cache.reserve(6, 6, &config, options, Ops::Generic);
        let [BlockCache::Plain(block), ..] = &mut cache.blocks[..] else { panic!("plain") };
        let _ = block.normal_(0.0, 1.0);
        let view = CacheView::new(&chunks, chunks.len());
        let (places, pages) = (Tensor::from_slice(&view.places), Tensor::from_slice(&view.pages));
        let columns = view.sequences(0);
        let plain = columns.on_device(&Tensor::from_slice(&columns.all()), places.shallow_clone(), pages, None);
        let half = Tensor::randn([rows, 1, dim / 2], options);
        let angles = Tensor::cat(&[&half, &half], 2);
        let rope = Rope { cos: angles.cos(), sin: angles.sin() };
        let [q, k] = generic::rotate(Tensor::cat(&qkv[..2], 1), [&rope.cos, &rope.sin], heads);
        let want = cache.attend_plain(0, &plain, [&q, &k, qkv[2]]);

        assert_eq!(decoding_rows(&chunks), chunks.len());
        let int = |numbers: &[i64]| Tensor::from_slice(numbers).to_kind(Kind::Int);
        // The first two rows decode, and the third is the end of a prompt.
        let columns = view.sequences(2);
        let [table, seen] = view.page_table(2);
        let decoding = Some((int(&table).view([2, -1]), int(&seen)));
        let numbers = Tensor::from_slice(&columns.all());
        let mixed = columns.on_device(&numbers, places.shallow_clone(), Tensor::from_slice(&columns.pages), decoding);
        assert!(cache.attend_plain(0, &mixed, [&q, &k, qkv[2]]).allclose(&want, 1e-5, 1e-5, false));

        let [page_table, lengths] = view.page_table(chunks.len()).map(|numbers| int(&numbers));
        let view = DecodeView { places: &places, page_table: &page_table.view([rows, -1]), lengths: &lengths };
        assert!(cache.attend_decoding(0, view, qkv, &rope).allclose(&want, 1e-5, 1e-5, false));
    }

    /// A random pass: rows that decode, then chunks of prompts; each with pages of its own.
    fn schedule(rng: &mut ChaCha8Rng) -> (Vec<Chunk>, usize) {
        let decoding = rng.random_range(0..=4);
        let prompts = rng.random_range(1..=3);
        let mut page = 0;
        let chunks = (0..decoding + prompts).map(|i| {
            let position = rng.random_range(0..3 * PAGE);
            let rows = if i < decoding { 1 } else { rng.random_range(2..=PAGE + 4) };
            let first = page;
            page += (position + rows).div_ceil(PAGE) as PageId;
            Chunk {
                id: i as u64,
                fed: false,
                tokens: vec![1; rows],
                position,
                rotary: Vec::new(),
                images: Vec::new(),
                pages: (first..page).rev().collect(),
                draws: true,
            }
        });
        (chunks.collect(), decoding)
    }

    /// Prompts of a pass do not change a bit of the rows that decode, nor these a bit of the prompts.
    #[test]
    fn a_pass_with_prompts_gives_the_bits_of_its_parts() {
        let options = (Kind::Float, Device::Cpu);
        let (heads, kv_heads, dim) = (4, 2, 16);
        let pages = 7 * 5 + 1;
        let numbers = |list: &[i64]| Tensor::from_slice(list);
        let cached = Tensor::randn([2, pages, PAGE as i64, kv_heads, dim], options);
        let view_of = |chunks: &[Chunk], decoding: usize| {
            let view = CacheView::new(chunks, chunks.iter().map(|chunk| chunk.tokens.len()).sum());
            let columns = view.sequences(decoding);
            let [table, seen] = view.page_table(decoding).map(|list| numbers(&list).to_kind(Kind::Int));
            let table = (decoding > 0).then(|| (table.view([decoding as i64, -1]), seen));
            columns.on_device(&numbers(&columns.all()), numbers(&view.places), numbers(&columns.pages), table)
        };
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for case in 0..10_000 {
            let (chunks, decoding) = schedule(&mut rng);
            assert_eq!(decoding_rows(&chunks), decoding);
            let rows: i64 = chunks.iter().map(|chunk| chunk.tokens.len() as i64).sum();
            let qkv = [heads, kv_heads, kv_heads].map(|n| Tensor::randn([rows, n, dim], options));
            let attend = |chunks: &[Chunk], decoding: usize, from: i64, count: i64| {
                let cache = Cache { blocks: vec![BlockCache::Plain(cached.copy())], pages };
                let own = [0, 1, 2].map(|i| qkv[i].narrow(0, from, count));
                cache.attend_plain(0, &view_of(chunks, decoding), [&own[0], &own[1], &own[2]])
            };
            let (split, mixed) = (decoding as i64, attend(&chunks, decoding, 0, rows));
            if decoding > 0 {
                let (alone, prompts) = chunks.split_at(decoding);
                let table = view_of(alone, decoding);
                let (page_table, lengths) = table.decoding.as_ref().expect("rows that decode");
                let cache = cached.copy();
                let own = [0, 1, 2].map(|i| qkv[i].narrow(0, 0, split));
                write_into_cache([&own[1], &own[2]], &cache, &table.places);
                let decoded = decode_attention(&own[0], &cache, page_table, lengths);
                assert!(mixed.narrow(0, 0, split).equal(&decoded), "case {case}");
                let of_prompts = attend(prompts, 0, split, rows - split);
                assert!(mixed.narrow(0, split, rows - split).equal(&of_prompts), "case {case}");
            }
            if case % 10 == 0 {
                // One attention for all, as without the kernel.
                assert!(mixed.allclose(&attend(&chunks, 0, 0, rows), 1e-5, 1e-5, false), "case {case}");
            }
        }
    }
}
