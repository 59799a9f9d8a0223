//! Generation: requests come and go, and every step decodes one token for each of those that run.
//!
//! A step admits waiting requests into free slots (their prompts in one packed pass) and decodes all running ones.
//! What is drawn does not depend on the schedule, see [`noise`]; logits do, in their last bits, because matrix kernels
//! depend on the number of rows. `deterministic` therefore fixes all row counts.

mod cache;
mod forward;
pub mod noise;
mod sampler;

use std::collections::{HashMap, VecDeque};

use anyhow::{Result, ensure};
use tch::Tensor;

use self::cache::Cache;
use self::forward::{Pass, Prompts, Weights};
pub use self::noise::NoiseKey;
pub use self::sampler::Sampling;
use self::sampler::{Draw, Drawn};
use crate::model::Model;

/// Packed tokens of one prefill pass; bounds its activations.
const PREFILL_TOKENS: usize = 8192;
/// Packed tokens of one prefill pass in deterministic mode, where every pass is this long (or as long as the longest
/// request, if that is longer).
const FIXED_PREFILL_TOKENS: usize = 1024;

/// What an engine is made for.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Requests decoded at once.
    pub slots: usize,
    /// Longest prompt and response together, in tokens.
    pub capacity: usize,
    /// Bit-identical log-probs whatever the schedule: fixed row counts, admission in (episode, step) order.
    pub deterministic: bool,
    /// Tokens that end a response; none: responses run to their limit.
    pub eos: Vec<u32>,
    /// Seed of the sampling noise.
    pub seed: u64,
}

/// A prompt to be continued.
#[derive(Debug, Clone)]
pub struct Request {
    /// Address of the sampling noise; comes back with the completion.
    pub key: NoiseKey,
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// Longest response.
    pub max_new_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
}

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The policy sampled an end-of-sequence token.
    Eos,
    /// The response reached its limit.
    Length,
}

/// A finished response.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The request's key.
    pub key: NoiseKey,
    /// The response, the end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each token: untruncated distribution, at the sampling temperature (1 for greedy).
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finished: Finish,
}

/// Work done since the counters were last taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens drawn.
    pub generated: u64,
    /// Prompt tokens computed.
    pub prefilled: u64,
    /// Prompt tokens that were copied from an equal prompt instead.
    pub shared: u64,
    /// Decode passes.
    pub decodes: u64,
}

/// A request in a slot.
#[derive(Debug)]
struct Running {
    key: NoiseKey,
    sampling: Sampling,
    prompt: usize,
    max_new_tokens: usize,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
}

impl Running {
    /// The token to feed next and its position: the last one drawn is not in the cache yet.
    fn input(&self) -> (u32, usize) {
        (self.tokens[self.tokens.len() - 1], self.prompt + self.tokens.len() - 1)
    }
}

/// The generator; holds the requests and their cache, not the model.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    waiting: VecDeque<Request>,
    /// The running requests, each in its cache slot. Holes exist only inside a step (in deterministic mode always).
    slots: Vec<Option<Running>>,
    cache: Cache,
    counters: Counters,
}

impl Engine {
    /// An idle engine. Its cache grows by need.
    pub fn new(options: EngineOptions) -> Self {
        let cache = Cache::new(options.slots, options.capacity);
        Self { options, waiting: VecDeque::new(), slots: Vec::new(), cache, counters: Counters::default() }
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        ensure!(!request.prompt.is_empty(), "a request needs a prompt of at least one token");
        ensure!(self.options.slots > 0, "an engine needs at least one slot");
        ensure!(request.max_new_tokens > 0, "a request must allow at least one new token");
        let needed = request.prompt.len() + request.max_new_tokens;
        let capacity = self.options.capacity;
        ensure!(needed <= capacity, "a request of {needed} tokens exceeds the engine's capacity of {capacity}");
        self.waiting.push_back(request);
        Ok(())
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// Forgets all requests and frees the cache.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.slots.clear();
        self.cache.clear();
    }

    /// The work done since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    /// Admits what fits, decodes one token for all running requests, and hands back those that are done.
    pub fn step(&mut self, model: &Model) -> Result<Vec<Completion>> {
        tch::no_grad(|| {
            let weights = Weights::of(model);
            let mut done = Vec::new();
            self.admit(model, &weights, &mut done)?;
            if !self.options.deterministic {
                self.close_holes();
            }
            self.decode(model, &weights, &mut done)?;
            Ok(done)
        })
    }

    /// Moves waiting requests into free slots and draws their first tokens.
    fn admit(&mut self, model: &Model, weights: &Weights, done: &mut Vec<Completion>) -> Result<()> {
        let fixed =
            self.options.deterministic.then(|| (FIXED_PREFILL_TOKENS.max(self.options.capacity), self.options.slots));
        if fixed.is_some() {
            self.waiting.make_contiguous().sort_by_key(|r| (r.key.episode, r.key.step));
            self.slots.resize_with(self.options.slots, || None);
        }
        let limit = fixed.map_or(PREFILL_TOKENS, |(length, _)| length);
        let mut free: VecDeque<usize> =
            (0..self.options.slots).filter(|&s| !matches!(self.slots.get(s), Some(Some(_)))).collect();
        while !free.is_empty() && !self.waiting.is_empty() {
            let mut job = Prompts { fixed, ..Default::default() };
            let mut known: HashMap<Vec<u32>, usize> = HashMap::new();
            while let Some(request) = self.waiting.front() {
                let seen = known.get(&request.prompt).copied();
                let full = !job.prompts.is_empty() && job.tokens() + request.prompt.len() > limit;
                if free.is_empty() || (seen.is_none() && full) {
                    break;
                }
                let (Some(request), Some(slot)) = (self.waiting.pop_front(), free.pop_front()) else { break };
                let length = request.prompt.len();
                let prompt = seen.unwrap_or_else(|| {
                    known.insert(request.prompt.clone(), job.prompts.len());
                    job.prompts.push(request.prompt);
                    job.prompts.len() - 1
                });
                job.wanted.push((prompt, slot));
                *(if seen.is_some() { &mut self.counters.shared } else { &mut self.counters.prefilled }) +=
                    length as u64;
                if slot >= self.slots.len() {
                    self.slots.resize_with(slot + 1, || None);
                }
                let (key, sampling, max_new_tokens) = (request.key, request.sampling, request.max_new_tokens);
                let (tokens, logprobs) = (Vec::new(), Vec::new());
                self.slots[slot] = Some(Running { key, sampling, prompt: length, max_new_tokens, tokens, logprobs });
            }
            self.reserve(model, job.prompts.iter().map(Vec::len).max().unwrap_or(0) + 1);
            let logits = Pass { model, weights, cache: &self.cache }.prefill(&job);
            let rows: Vec<Option<usize>> = job.wanted.iter().map(|&(_, slot)| Some(slot)).collect();
            self.draw(&logits, rows, done)?;
        }
        Ok(())
    }

    /// Decodes one token for every running request.
    fn decode(&mut self, model: &Model, weights: &Weights, done: &mut Vec<Completion>) -> Result<()> {
        let inputs: Vec<(u32, usize)> = self.slots.iter().map(|s| s.as_ref().map_or((0, 0), Running::input)).collect();
        if self.slots.iter().all(Option::is_none) {
            return Ok(());
        }
        self.reserve(model, inputs.iter().map(|&(_, position)| position + 1).max().unwrap_or(1));
        let length = self.options.deterministic.then_some(self.cache.length());
        let logits = Pass { model, weights, cache: &self.cache }.decode(&inputs, length);
        let rows = (0..self.slots.len()).map(|slot| self.slots[slot].is_some().then_some(slot)).collect();
        self.counters.decodes += 1;
        self.draw(&logits, rows, done)
    }

    /// Draws a token per row of the logits for the slot named there; rows beyond, or without a slot, are padding.
    fn draw(&mut self, logits: &Tensor, rows: Vec<Option<usize>>, done: &mut Vec<Completion>) -> Result<()> {
        let seed = self.options.seed;
        let draw =
            |run: &Running| Draw { sampling: run.sampling, uniform: run.key.uniform(seed, run.tokens.len() as u32) };
        let live =
            |row: Option<&Option<usize>>| row.copied().flatten().and_then(|slot| self.slots[slot].as_ref()).map(draw);
        let padding = rows.iter().find_map(|row| live(Some(row))).unwrap_or_default();
        let draws: Vec<Draw> = (0..logits.size()[0] as usize).map(|i| live(rows.get(i)).unwrap_or(padding)).collect();
        let Drawn { tokens, logprobs } = sampler::sample(logits, &draws)?;
        for (row, slot) in rows.into_iter().enumerate() {
            let Some((slot, run)) = slot.and_then(|slot| Some((slot, self.slots[slot].as_mut()?))) else { continue };
            run.tokens.push(tokens[row]);
            run.logprobs.push(logprobs[row]);
            self.counters.generated += 1;
            let eos = self.options.eos.contains(&tokens[row]);
            if (eos || run.tokens.len() >= run.max_new_tokens)
                && let Some(Running { key, tokens, logprobs, .. }) = self.slots[slot].take()
            {
                done.push(Completion {
                    key,
                    tokens,
                    logprobs,
                    finished: if eos { Finish::Eos } else { Finish::Length },
                });
            }
        }
        Ok(())
    }

    /// Moves the last running requests into the slots that have become free.
    fn close_holes(&mut self) {
        let mut hole = 0;
        while hole < self.slots.len() {
            if self.slots[hole].is_some() {
                hole += 1;
            } else if let Some(Some(last)) = self.slots.pop() {
                let from = self.slots.len();
                self.cache.copy(from, hole, last.input().1);
                self.slots[hole] = Some(last);
            }
        }
    }

    /// Room in the cache for the slots in use and this many tokens each; in deterministic mode all there may be.
    fn reserve(&mut self, model: &Model, length: usize) {
        let all = (self.options.slots, self.options.capacity);
        let (slots, length) = if self.options.deterministic { all } else { (self.slots.len(), length) };
        self.cache.reserve(slots, length, &model.config, (model.kind(), model.device()));
    }
}

#[cfg(test)]
mod tests;
