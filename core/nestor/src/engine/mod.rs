//! Generation with continuous batching: requests join and leave at any token. Every pass decodes one token for each running
//! request, and fills the cache with the prompts of new ones.
//!
//! The sampling noise does not depend on the schedule, see [`noise`]. The last bits of logits do, because matrix kernels
//! depend on the number of rows. `deterministic` therefore fixes all row counts, and the order of admission.
//!
//! A GPU's passes of decoding rows are recorded, and the host plans one pass ahead of what it has read, see [`ahead`].

pub mod ahead;
mod buffers;
mod cache;
mod forward;
pub mod noise;
mod pages;
mod recorded;
mod sampler;
mod scheduler;
mod spent;

use std::time::Instant;

use anyhow::{Result, ensure};
use nestor_torch::ReorderedLinear;
use nestor_torch::ops::Ops;
use tch::{Device, Tensor};

use self::ahead::Ahead;
use self::cache::Cache;
pub use self::forward::Weights;
use self::forward::{FixedRows, forward};
pub use self::noise::NoiseKey;
pub use self::pages::PAGE;
use self::recorded::Recorder;
pub use self::sampler::Sampling;
use self::sampler::{Draw, Drawn};
use self::scheduler::{Chunk, Limits, Scheduler};
pub use self::spent::Spent;
use self::spent::Stopwatch;
use crate::model::Model;
use crate::model::vision::PlacedImage;
use crate::tokenizer::Ends;

/// Rows of a pass: bounds its activations, and the time that decoding requests wait for prompts.
const PASS_ROWS: usize = 1024;
/// The same beside recorded passes. There a pass with prompts has the host's time for all its launches, so it should be large:
/// on an H200 one of 1,024 rows of Qwen2.5-1.5B took 12 ms, 5 of them without work for the GPU.
const PASS_ROWS_BESIDE_RECORDED: usize = 4096;
/// Rows of a pass beyond the slots in deterministic mode, where every pass has all of them.
const FIXED_PROMPT_ROWS: usize = 64;

/// Most rows of a pass, where they are not fixed.
pub fn pass_rows(slots: usize, recorded: bool) -> usize {
    let rows = if recorded { PASS_ROWS_BESIDE_RECORDED } else { PASS_ROWS };
    rows.max(2 * slots)
}

/// Rows of the tensors of recorded passes with this many slots.
pub fn recorded_rows(slots: usize) -> usize {
    buffers::bucket(slots)
}

/// The form in which decoding rows are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Decode {
    /// Recorded on CUDA, plain elsewhere. `NESTOR_DECODE=recorded` or `NESTOR_DECODE=plain` in the environment chooses one.
    #[default]
    Auto,
    /// Every pass is a forward pass of its own, and its tokens are read before the next one is planned.
    Plain,
    /// Passes are recorded once for each number of rows, and planned one ahead. With the generic operations only; a
    /// deterministic engine stays plain.
    Recorded,
}

/// Options of an engine.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Requests decoded at once.
    pub slots: usize,
    /// Longest prompt and response together, in tokens.
    pub capacity: usize,
    /// Most tokens whose keys and values are kept; 0: as many as all slots may need. A request waits for room.
    pub cache_tokens: usize,
    /// Bit-identical log-probs under any schedule: fixed row counts, admission in (episode, step) order.
    pub deterministic: bool,
    /// The ends of responses; by default there are none, and responses run to their limit.
    pub ends: Ends,
    /// Seed of the sampling noise.
    pub seed: u64,
    pub decode: Decode,
}

/// A prompt to continue.
#[derive(Debug, Clone)]
pub struct Request {
    /// Address of the sampling noise; returned with the completion.
    pub key: NoiseKey,
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// The images among them, in their order.
    pub images: Vec<PlacedImage>,
    /// Longest response.
    pub max_new_tokens: usize,
    pub sampling: Sampling,
}

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The policy sampled an end-of-sequence token.
    Eos,
    /// The policy completed a stop text.
    Stop,
    /// The response reached its limit.
    Length,
}

/// A finished response.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The key of the request.
    pub key: NoiseKey,
    /// The response, its end-of-sequence token or stop text included.
    pub tokens: Vec<u32>,
    /// Log-probability of each token: untruncated distribution, at the sampling temperature (1 for greedy).
    pub logprobs: Vec<f32>,
    pub finished: FinishReason,
}

/// Work since the counters were last taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens drawn.
    pub generated: u64,
    /// Prompt tokens computed.
    pub prefilled: u64,
    /// Drawn tokens computed, to draw the next ones.
    pub decoded: u64,
    /// Prompt tokens found in the cache instead.
    pub shared: u64,
    /// Rows alone in their chunk: those that decode, and last tokens of prompts.
    pub alone: u64,
    /// Rows among them that attended to the cache's pages where they are.
    pub paged: u64,
    pub passes: u64,
}

/// The generator: holds the requests and their cache, not the model.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    /// Most pages of the cache.
    pages: usize,
    scheduler: Scheduler,
    cache: Cache,
    ahead: Ahead,
    recorder: Recorder,
    stopwatch: Stopwatch,
}

impl Engine {
    /// An idle engine. Its cache grows on demand.
    pub fn new(mut options: EngineOptions) -> Self {
        if options.decode == Decode::Auto {
            options.decode = match std::env::var_os("NESTOR_DECODE") {
                Some(decode) if decode == "recorded" => Decode::Recorded,
                Some(decode) if decode == "plain" => Decode::Plain,
                _ => Decode::Auto,
            };
        }
        let longest = options.capacity.div_ceil(PAGE);
        let pages = match options.cache_tokens {
            0 => options.slots * longest,
            tokens => (tokens / PAGE).max(longest),
        };
        let rows = match options.deterministic {
            true => options.slots + FIXED_PROMPT_ROWS,
            false => pass_rows(options.slots, false),
        };
        let scheduler = Scheduler::new(Limits {
            slots: options.slots,
            pages,
            rows,
            ends: options.ends.clone(),
            ordered: options.deterministic,
            gathers: false,
        });
        let (ahead, cache, recorder) = (Ahead::new(&options), Cache::default(), Recorder::default());
        Self { options, pages, scheduler, cache, ahead, recorder, stopwatch: Stopwatch::default() }
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        ensure!(!request.prompt.is_empty(), "a request needs a prompt of at least one token");
        ensure!(self.options.slots > 0, "an engine needs at least one slot");
        ensure!(request.max_new_tokens > 0, "a request must allow at least one new token");
        let needed = request.prompt.len() + request.max_new_tokens;
        let capacity = self.options.capacity;
        ensure!(needed <= capacity, "a request of {needed} tokens exceeds the engine's capacity of {capacity}");
        self.scheduler.submit(request);
        Ok(())
    }

    /// Returns true if no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Drops a request, whether it waits or runs; it gets no completion.
    pub fn cancel(&mut self, key: NoiseKey) {
        self.scheduler.cancel(key);
    }

    /// Tokens drawn so far for a running request and their log-probs; none for one that waits or has left.
    pub fn drawn(&self, key: NoiseKey) -> Option<(&[u32], &[f32])> {
        self.scheduler.drawn(key)
    }

    /// Drops all requests and frees the cache, because its contents belong to weights that are about to change.
    pub fn clear(&mut self) {
        self.scheduler.clear();
        self.recorder.clear();
        self.ahead = Ahead::new(&self.options);
        self.cache.clear();
        self.stopwatch.clear();
    }

    /// The work since the counters were last taken.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters()
    }

    /// The work since the last call.
    pub fn take_counters(&mut self) -> Counters {
        self.scheduler.take_counters()
    }

    /// The time of passes since the last call.
    pub fn take_spent(&mut self) -> Spent {
        self.stopwatch.take()
    }

    /// Runs one pass: admits the requests that fit, decodes one token for all running requests, and returns the completed
    /// ones. Where passes are recorded, those that the pass before completed: see [`ahead`]. All passes until `clear` must
    /// get the same weights.
    pub fn step(&mut self, weights: &Weights) -> Result<Vec<Completion>> {
        if self.is_idle() {
            return Ok(Vec::new());
        }
        let (begin, before) = (Instant::now(), self.counters());
        let model = weights.model();
        model.config.check_cached_length(self.options.capacity)?;
        if model.ops == Ops::Generic {
            self.reserve(model, self.pages);
        }
        let ahead = self.records(model);
        let done = if ahead { self.step_ahead(weights) } else { self.step_now(weights) }?;
        self.stopwatch.add(begin.elapsed(), (before, self.counters()), ahead);
        Ok(done)
    }

    /// A pass whose tokens are read before the next one is planned.
    fn step_now(&mut self, weights: &Weights) -> Result<Vec<Completion>> {
        let model = weights.model();
        let chunks = self.scheduler.plan();
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        self.reserve(model, self.scheduler.pages().touched());
        let rows =
            |least: usize| if model.device() == Device::Cpu { ReorderedLinear::alike_rows(least) } else { least };
        let slots = self.options.slots;
        let fixed = self
            .options
            .deterministic
            .then(|| FixedRows { rows: rows(slots + FIXED_PROMPT_ROWS), logits: rows(slots) });
        if fixed.is_none() {
            self.scheduler.count_paged(self.cache.paged_rows(&chunks));
        }
        let drawn = tch::no_grad(|| {
            let logits = forward(weights, &self.cache, &chunks, fixed, None)?;
            self.draw(model.ops, &logits, &chunks)
        })?;
        Ok(self.scheduler.record(&chunks, drawn.tokens.into_iter().zip(drawn.logprobs)))
    }

    /// Makes room in the cache for this many pages.
    fn reserve(&mut self, model: &Model, pages: usize) {
        self.cache.reserve(pages, self.pages, &model.config, (model.kind(), model.device()), model.ops);
    }

    /// True if passes with this model are recorded. The cache has room.
    fn records(&self, model: &Model) -> bool {
        if model.ops != Ops::Generic || self.options.deterministic {
            return false;
        }
        match self.options.decode {
            Decode::Plain => false,
            Decode::Recorded => true,
            // Without the kernel, attention of fixed shapes would copy all pages that a request may ever have.
            Decode::Auto => model.device().is_cuda() && self.cache.attends_pages(),
        }
    }

    fn step_ahead(&mut self, weights: &Weights) -> Result<Vec<Completion>> {
        self.scheduler.set_passes(pass_rows(self.options.slots, true), true);
        let mut bound = self.recorder.bind(weights, &self.cache, &self.options)?;
        let done = self.ahead.step(&mut self.scheduler, &mut bound)?;
        self.scheduler.count_paged(self.cache.paged_rows(self.ahead.started()));
        Ok(done)
    }

    /// Draws a token for each chunk that draws; further rows of logits are filling.
    fn draw(&self, ops: Ops, logits: &Tensor, chunks: &[Chunk]) -> Result<Drawn> {
        let seed = self.options.seed;
        let mut draws: Vec<Draw> = chunks
            .iter()
            .filter(|chunk| chunk.draws)
            .filter_map(|chunk| {
                let run = self.scheduler.request(chunk.id)?;
                let uniform = run.request.key.uniform(seed, run.planned_draw() as u32);
                Some(Draw { sampling: run.request.sampling, uniform })
            })
            .collect();
        if draws.is_empty() {
            return Ok(Drawn::default());
        }
        draws.resize(logits.size()[0] as usize, draws[0]);
        sampler::sample(ops, logits, &draws)
    }
}

#[cfg(test)]
mod tests;
