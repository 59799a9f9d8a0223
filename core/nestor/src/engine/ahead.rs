//! Decoding one pass ahead of the host: pass n + 1 is planned and started before the tokens of pass n are read.
//!
//! A decoding row takes its token from the draws of the pass before, where they are, so that the host never waits for a
//! pass that it has just started. It learns that a response ended one pass late. Tokens and log-probs are those of the
//! plain engine, and so is the order of completions, under this rule: **a request that has ended keeps its slot and its
//! pages for one more pass**, and each completion is returned one call later. Where no request waits for a slot, a page or
//! a row, the order is the plain engine's itself. A request that ended by a token has a row too many in that pass. Its
//! draw is dropped, and its page is never published. A page that drawn tokens fill is published once they are read, one pass
//! later than in the plain engine.
//!
//! The control uses no tensors. An [`Executor`] runs the passes: `recorded` on a device, a model without tensors in tests.

use anyhow::Result;

use super::buffers::{NextDraw, Row, RowToken, Shape, SlotTable, bucket, pack};
use super::pages::PAGE;
use super::sampler::{self, Draw, Drawn, Sampling};
use super::scheduler::{Chunk, RequestId, RunningRequest, Scheduler};
use super::{Completion, EngineOptions};

/// Rows of a pass whose tokens are on the device only.
#[derive(Debug, Default)]
pub struct FedRows {
    /// The rows.
    pub rows: Vec<i64>,
    /// The place of each row's token among those that the pass before drew.
    pub sources: Vec<i64>,
}

/// Runs passes in the order of its calls, and keeps the tokens that the last one drew for the next.
pub trait Executor {
    /// Replaces the table of slots for the passes that follow.
    fn set_slots(&mut self, numbers: &[f32]) -> Result<()>;
    /// Starts a recorded pass; the input is made by [`pack`]. Every row draws.
    fn replay(&mut self, shape: Shape, input: &[i64]) -> Result<()>;
    /// Starts a pass of any chunks; `draws` has an entry for each chunk that draws.
    fn run(&mut self, chunks: &[Chunk], fed: &FedRows, draws: &[Draw]) -> Result<()>;
    /// Waits for the oldest started pass that draws and is not read, and returns the draws of its first rows.
    fn read(&mut self, rows: usize) -> Result<Drawn>;
}

/// The control.
#[derive(Debug)]
pub struct Ahead {
    seed: u64,
    /// Pages of the longest request that may come.
    pages: usize,
    slots: SlotTable,
    in_flight: Option<Started>,
}

/// A pass whose draws are not read yet.
#[derive(Debug)]
struct Started {
    chunks: Vec<Chunk>,
    /// The chunks that draw, in their order.
    draws: Vec<(RequestId, Sampling)>,
}

impl Started {
    /// The place of a request's draw.
    fn source(&self, id: RequestId) -> Option<usize> {
        self.draws.iter().position(|draw| draw.0 == id)
    }
}

impl Ahead {
    pub fn new(options: &EngineOptions) -> Self {
        let pages = options.capacity.div_ceil(PAGE).max(1);
        Self { seed: options.seed, pages, slots: SlotTable::new(options.slots, options.seed), in_flight: None }
    }

    /// Plans and starts the next pass, then reads the one before it. Returns the requests that it completed.
    pub fn step(&mut self, scheduler: &mut Scheduler, executor: &mut impl Executor) -> Result<Vec<Completion>> {
        let chunks = scheduler.plan();
        let started = if chunks.is_empty() { None } else { Some(self.start(scheduler, chunks, executor)?) };
        let Some(pass) = std::mem::replace(&mut self.in_flight, started) else { return Ok(Vec::new()) };
        let drawn = if pass.draws.is_empty() { Drawn::default() } else { executor.read(pass.draws.len())? };
        sampler::check(&drawn, pass.draws.iter().map(|&(_, sampling)| sampling))?;
        Ok(scheduler.record(&pass.chunks, drawn.tokens.into_iter().zip(drawn.logprobs)))
    }

    /// The chunks of the pass that the last call started, if it started one.
    pub fn started(&self) -> &[Chunk] {
        self.in_flight.as_ref().map_or(&[], |pass| &pass.chunks)
    }

    fn start(&mut self, scheduler: &Scheduler, chunks: Vec<Chunk>, executor: &mut impl Executor) -> Result<Started> {
        let run = |chunk: &Chunk| -> &RunningRequest {
            scheduler.request(chunk.id).unwrap_or_else(|| unreachable!("a planned request runs"))
        };
        let next: Vec<NextDraw> = chunks
            .iter()
            .filter(|chunk| chunk.draws)
            .map(|chunk| {
                let (id, run) = (chunk.id, run(chunk));
                NextDraw { id, key: run.request.key, number: run.planned_draw(), sampling: run.request.sampling }
            })
            .collect();
        let source = |chunk: &Chunk| -> Option<usize> {
            let place = self.in_flight.as_ref().and_then(|pass| pass.source(chunk.id));
            chunk.fed.then(|| place.unwrap_or_else(|| unreachable!("a fed row's token is drawn in the pass before")))
        };
        if chunks.iter().all(|chunk| chunk.draws && chunk.tokens.len() == 1) {
            let truncates = next.iter().any(|next| next.sampling.truncates());
            // Attention cuts the context into pieces by this length, so it follows the requests that run.
            let longest = chunks.iter().map(|chunk| chunk.pages.len()).max().unwrap_or(1);
            let pages = longest.next_power_of_two().min(self.pages);
            let shape = Shape { rows: bucket(chunks.len()), pages, truncates };
            self.slots.retain(|id| scheduler.request(id).is_some());
            let (uniforms, changed) = self.slots.places(&next);
            let mut rows = Vec::with_capacity(chunks.len());
            for (chunk, &uniform) in chunks.iter().zip(&uniforms) {
                let token = source(chunk).map_or(RowToken::Known(chunk.tokens[0]), RowToken::Drawn);
                // A row that is drawn has one position on all axes.
                let rotary = chunk.rotary.first().map_or(chunk.position, |axes| axes[0] as usize);
                rows.push(Row { token, position: chunk.position, rotary, pages: &chunk.pages, uniform });
            }
            if changed {
                executor.set_slots(self.slots.numbers())?;
            }
            executor.replay(shape, &pack(shape, &rows))?;
        } else {
            let (mut fed, mut row) = (FedRows::default(), 0);
            for chunk in &chunks {
                if let Some(source) = source(chunk) {
                    fed.rows.push(row);
                    fed.sources.push(source as i64);
                }
                row += chunk.tokens.len() as i64;
            }
            let draw = |next: &NextDraw| Draw {
                sampling: next.sampling,
                uniform: next.key.uniform(self.seed, next.number as u32),
            };
            executor.run(&chunks, &fed, &next.iter().map(draw).collect::<Vec<_>>())?;
        }
        Ok(Started { draws: next.iter().map(|next| (next.id, next.sampling)).collect(), chunks })
    }
}

#[cfg(test)]
mod tests;
