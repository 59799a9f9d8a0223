//! Passes of decoding rows over static tensors, recorded once for each bucket: a graph on a GPU, a closure elsewhere.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use anyhow::{Context, Result};
use nestor_torch::decoding::{DrawColumns, TruncationColumns};
use nestor_torch::graph::{GraphPool, ReadBack, Recording, Work, copy_into};
use tch::{Kind, Tensor};

use super::EngineOptions;
use super::ahead::{Executor, FedRows};
use super::buffers::{Column, GREEDY, INVERSE_TEMPERATURE, LOG_MIN_P, SLOT_NUMBERS, Shape, TOP_K, TOP_P, bucket};
use super::cache::{Cache, DecodeView};
use super::forward::{Feed, HeldWeights, Weights, forward};
use super::sampler::{Draw, Drawn, draw_rows, draw_tensors};
use super::scheduler::Chunk;
use crate::model::decoder::{ForwardInput, WeightSource};
use crate::model::{Model, Rope};

/// The recorded passes of an engine, and the tensors that they share.
#[derive(Debug, Default)]
pub struct Recorder {
    // Before the pool that they allocate from.
    buckets: HashMap<Shape, Bucket>,
    pool: Option<GraphPool>,
    /// Addresses of the weights and of the cache that the recordings read.
    addresses: Vec<usize>,
    shared: Option<Shared>,
    /// Draws on their way to the host, the oldest first.
    reads: VecDeque<ReadBack>,
}

/// Tensors that all passes share.
#[derive(Debug)]
struct Shared {
    /// Tokens of the last pass's draws, and their log-probs: (2, slots) float64.
    drawn: Tensor,
    /// The table of slots, (slots, [`SLOT_NUMBERS`]) float32.
    slots: Tensor,
    /// Rotary tables of all positions.
    rope: Rope,
}

/// A recorded pass and its input.
#[derive(Debug)]
struct Bucket {
    input: Tensor,
    recording: Recording,
}

impl Recorder {
    /// Drops the recordings and the tensors, after the work that uses them.
    pub fn clear(&mut self) {
        self.reads.drain(..).for_each(|read| drop(read.wait()));
        *self = Self::default();
    }

    /// Number of recordings.
    #[cfg(test)]
    pub fn recordings(&self) -> usize {
        self.buckets.len()
    }

    /// Addresses that the recordings read.
    #[cfg(test)]
    pub fn addresses(&self) -> &[usize] {
        &self.addresses
    }

    /// Prepares passes with these weights and this cache. Recordings stay where all addresses do, whatever the contents.
    pub fn bind<'a>(
        &'a mut self,
        weights: &'a Weights,
        cache: &'a Cache,
        options: &EngineOptions,
    ) -> Result<Bound<'a>> {
        let slots = options.slots;
        let (rows, device) = (bucket(slots) as i64, weights.model().device());
        let cached = cache.plain().into_iter().map(|block| block.data_ptr() as usize);
        let addresses: Vec<usize> = weights.held().addresses.iter().copied().chain(cached).collect();
        if addresses != self.addresses {
            self.buckets.clear();
            self.pool = GraphPool::new(device)?;
            self.addresses = addresses;
        }
        if self.shared.is_none() {
            self.shared = Some(Shared {
                drawn: Tensor::zeros([2, rows], (Kind::Double, device)),
                slots: Tensor::zeros([slots as i64, SLOT_NUMBERS as i64], (Kind::Float, device)),
                rope: weights.model().rope(&Tensor::arange(options.capacity as i64, (Kind::Int64, device))),
            });
        }
        Ok(Bound { recorder: self, weights, cache })
    }
}

/// A recorder with the weights and the cache of this step.
pub struct Bound<'a> {
    recorder: &'a mut Recorder,
    weights: &'a Weights<'a>,
    cache: &'a Cache,
}

impl Bound<'_> {
    fn shared(&self) -> Result<&Shared> {
        self.recorder.shared.as_ref().context("the recorder is bound")
    }

    /// Starts to read the draws of the pass just started.
    fn start_read(&mut self) -> Result<()> {
        let read = ReadBack::begin(&self.shared()?.drawn)?;
        self.recorder.reads.push_back(read);
        Ok(())
    }

    /// The pass of a bucket. It owns what it reads.
    fn work(&self, shape: Shape, input: &Tensor) -> Result<Work> {
        let shared = self.shared()?;
        let column = |column| {
            let places = shape.column(column);
            input.narrow(0, places.start as i64, places.len() as i64)
        };
        let pages = shape.page_table();
        let pass = DecodePass {
            model: self.weights.model().without_adapters(),
            weights: Rc::clone(self.weights.held()),
            cache: self.cache.plain().into_iter().map(Tensor::shallow_clone).collect(),
            tokens: column(Column::Token),
            sources: column(Column::Source),
            positions: column(Column::Position),
            places: column(Column::Place),
            lengths: column(Column::Length),
            slots: column(Column::Slot),
            uniforms: column(Column::Uniform),
            truncates: shape.truncates,
            page_table: input.narrow(0, pages.start as i64, pages.len() as i64).view([-1, shape.pages as i64]),
            drawn: shared.drawn.shallow_clone(),
            table: shared.slots.shallow_clone(),
            rope: shared.rope.shallow_clone(),
        };
        Ok(Box::new(move || tch::no_grad(|| pass.run())))
    }
}

impl Executor for Bound<'_> {
    fn set_slots(&mut self, numbers: &[f32]) -> Result<()> {
        copy_into(numbers, &self.shared()?.slots)
    }

    fn replay(&mut self, shape: Shape, input: &[i64]) -> Result<()> {
        if let Some(bucket) = self.recorder.buckets.get(&shape) {
            copy_into(input, &bucket.input)?;
            bucket.recording.replay()?;
        } else {
            let options = (Kind::Int64, self.weights.model().device());
            let tensor = Tensor::zeros([shape.numel() as i64], options);
            copy_into(input, &tensor)?;
            let recording = Recording::new(self.recorder.pool.as_ref(), self.work(shape, &tensor)?)?;
            self.recorder.buckets.insert(shape, Bucket { input: tensor, recording });
        }
        self.start_read()
    }

    fn run(&mut self, chunks: &[Chunk], fed: &FedRows, draws: &[Draw]) -> Result<()> {
        let shared = self.shared()?;
        let drawn = shared.drawn.select(0, 0);
        let feed = Feed { rows: &fed.rows, sources: &fed.sources, drawn: &drawn };
        let feed = (!fed.rows.is_empty()).then_some(feed);
        tch::no_grad(|| {
            let logits = forward(self.weights, self.cache, chunks, None, feed)?;
            if !draws.is_empty() {
                shared.drawn.narrow(1, 0, draws.len() as i64).copy_(&draw_tensors(&logits, draws));
            }
            anyhow::Ok(())
        })?;
        if draws.is_empty() { Ok(()) } else { self.start_read() }
    }

    fn read(&mut self, rows: usize) -> Result<Drawn> {
        let read = self.recorder.reads.pop_front().context("a started pass is read once")?;
        Drawn::read(&read.wait(), rows)
    }
}

/// A pass of B decoding rows with all tensors that it reads and writes: the inputs (B) int64.
struct DecodePass {
    /// For its configuration; the weights are `weights`.
    model: Model,
    weights: Rc<HeldWeights>,
    cache: Vec<Tensor>,
    tokens: Tensor,
    sources: Tensor,
    positions: Tensor,
    places: Tensor,
    lengths: Tensor,
    slots: Tensor,
    uniforms: Tensor,
    truncates: bool,
    /// (B, N).
    page_table: Tensor,
    drawn: Tensor,
    table: Tensor,
    rope: Rope,
}

impl DecodePass {
    /// Computes the rows and draws their next tokens. Waits for nothing.
    fn run(&self) -> Result<()> {
        let Self { model, weights, drawn, .. } = self;
        let HeldWeights { outer, blocks, .. } = &**weights;
        let fed = drawn.select(0, 0).index_select(0, &self.sources.clamp_min(0)).to_kind(Kind::Int64);
        let tokens = fed.where_self(&self.sources.ge(0), &self.tokens);
        let [page_table, lengths] = [&self.page_table, &self.lengths].map(|numbers| numbers.to_kind(Kind::Int));
        let view = DecodeView { places: &self.places, page_table: &page_table, lengths: &lengths };
        let rope = self.rope.rows(&self.positions);
        let input = ForwardInput { tokens: &tokens, images: None, rope: &rope, decodes: true, keys: None, read: None };
        let attend =
            |layer: usize, q: &Tensor, k: &Tensor, v: &Tensor| view.attend(&self.cache[layer], [q, k, v], &rope);
        let states = model.forward(WeightSource::Held { outer, blocks }, &input, attend)?;
        let lines = self.table.index_select(0, &self.slots);
        let column = |place: usize| lines.select(1, place as i64);
        let truncation = self
            .truncates
            .then(|| [column(TOP_K).to_kind(Kind::Int), column(TOP_P).contiguous(), column(LOG_MIN_P).contiguous()]);
        let settings = DrawColumns {
            inverse_temperatures: &column(INVERSE_TEMPERATURE).contiguous(),
            uniforms: &lines.gather(1, &self.uniforms.unsqueeze(1), false).squeeze_dim(1),
            greedy: &column(GREEDY).to_kind(Kind::Int),
            truncation: truncation.as_ref().map(|[top_k, top_p, log_min_p]| TruncationColumns {
                top_k,
                top_p,
                log_min_p,
            }),
        };
        let both = draw_rows(&model.logits(outer, &states), &settings);
        drawn.narrow(1, 0, both.size()[1]).copy_(&both);
        Ok(())
    }
}
