//! The control against the plain scheduler, with a model without tensors: the next token is a hash of all tokens and
//! positions before it, as the pages of a make-believe cache hold them. A stale input therefore changes tokens.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use nestor_torch::graph::{Recording, Work};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::engine::buffers::{Column, GREEDY, INVERSE_TEMPERATURE, LOG_MIN_P, SLOT_NUMBERS, TOP_K, TOP_P};
use crate::engine::scheduler::Limits;
use crate::engine::{FinishReason, NoiseKey, Request};

fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (x >> 32)
}

/// Keys and values of a token.
fn value(token: u32, position: usize) -> u64 {
    mix(u64::from(token) + 1, position as u64)
}

/// A draw depends on these, besides the sequence.
#[derive(Debug, Clone, Copy)]
struct Settings {
    inverse_temperature: f32,
    uniform: f32,
    greedy: bool,
    top_k: i32,
    top_p: f32,
    log_min_p: f32,
}

impl Settings {
    fn of(draw: &Draw) -> Self {
        let Draw { sampling, uniform } = *draw;
        let (greedy, top_k, top_p) = (sampling.is_greedy(), sampling.kept_tokens(), sampling.top_p as f32);
        let log_min_p = sampling.log_min_p();
        Self { inverse_temperature: sampling.inverse_temperature(), uniform, greedy, top_k, top_p, log_min_p }
    }

    fn draw(&self, sequence: impl Iterator<Item = u64>) -> (u32, f32) {
        let mut hash = sequence.fold(7, mix);
        if !self.greedy {
            hash = mix(hash, u64::from(self.uniform.to_bits()) << 32 | u64::from(self.inverse_temperature.to_bits()));
            hash = mix(hash, (self.top_k as u64) << 32 | u64::from(self.top_p.to_bits()));
            hash = mix(hash, u64::from(self.log_min_p.to_bits()));
        }
        ((hash % 17) as u32, -((hash >> 40) as f32))
    }
}

/// A part of a recorded pass's memory that is not refreshed after its first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stale {
    Column(Column),
    PageTable,
    Slots,
    /// One of the settings in all lines of the table of slots.
    Setting(usize),
    Drawn,
}

/// The device's memory.
#[derive(Debug, Default)]
struct Memory {
    cache: HashMap<i64, u64>,
    inputs: HashMap<Shape, Vec<i64>>,
    slots: Vec<f32>,
    /// The last pass's draws, as the next pass reads them and as the host does.
    drawn: Vec<(u32, f32)>,
    read_back: Vec<(u32, f32)>,
    stale: Option<Stale>,
}

impl Memory {
    /// The recorded pass.
    fn decode(&mut self, shape: Shape) {
        let input = self.inputs[&shape].clone();
        let column = |column| &input[shape.column(column)];
        let page_table = &input[shape.page_table()];
        let place = |row: usize, at: usize| {
            let page = page_table[row * shape.pages..][..shape.pages].get(at / PAGE).copied().unwrap_or(0);
            page * PAGE as i64 + (at % PAGE) as i64
        };
        for row in 0..shape.rows {
            let known = column(Column::Token)[row] as u32;
            let source = usize::try_from(column(Column::Source)[row]);
            let token = source.map_or(known, |source| self.drawn.get(source).map_or(0, |drawn| drawn.0));
            self.cache.insert(column(Column::Place)[row], value(token, column(Column::Position)[row] as usize));
        }
        let mut drawn = Vec::new();
        for row in 0..shape.rows {
            let line = &self.slots[column(Column::Slot)[row] as usize * SLOT_NUMBERS..][..SLOT_NUMBERS];
            let settings = Settings {
                inverse_temperature: line[INVERSE_TEMPERATURE],
                uniform: line[column(Column::Uniform)[row] as usize],
                greedy: line[GREEDY] == 1.0,
                top_k: if shape.truncates { line[TOP_K] as i32 } else { 0 },
                top_p: if shape.truncates { line[TOP_P] } else { 1.0 },
                log_min_p: if shape.truncates { line[LOG_MIN_P] } else { f32::NEG_INFINITY },
            };
            let seen = 0..column(Column::Length)[row] as usize;
            drawn.push(settings.draw(seen.map(|at| self.cache.get(&place(row, at)).copied().unwrap_or(0))));
        }
        self.keep(drawn);
    }

    fn keep(&mut self, drawn: Vec<(u32, f32)>) {
        if self.stale != Some(Stale::Drawn) || self.drawn.is_empty() {
            self.drawn.clone_from(&drawn);
        }
        self.read_back = drawn;
    }
}

/// Runs passes in a make-believe memory.
#[derive(Default)]
struct Fake {
    memory: Rc<RefCell<Memory>>,
    recordings: HashMap<Shape, Recording>,
    reads: VecDeque<Vec<(u32, f32)>>,
    eager: usize,
}

impl Executor for Fake {
    fn set_slots(&mut self, numbers: &[f32]) -> Result<()> {
        let mut memory = self.memory.borrow_mut();
        let mut fresh = numbers.to_vec();
        for (at, (number, &old)) in fresh.iter_mut().zip(&memory.slots).enumerate() {
            let stale = match memory.stale {
                Some(Stale::Slots) => true,
                Some(Stale::Setting(place)) => at % SLOT_NUMBERS == place,
                _ => false,
            };
            if stale {
                *number = old;
            }
        }
        memory.slots = fresh;
        Ok(())
    }

    fn replay(&mut self, shape: Shape, input: &[i64]) -> Result<()> {
        let mut memory = self.memory.borrow_mut();
        let mut fresh = input.to_vec();
        if let Some(old) = memory.inputs.get(&shape) {
            let kept = match memory.stale {
                Some(Stale::Column(column)) => shape.column(column),
                Some(Stale::PageTable) => shape.page_table(),
                _ => 0..0,
            };
            fresh[kept.clone()].copy_from_slice(&old[kept]);
        }
        memory.inputs.insert(shape, fresh);
        drop(memory);
        match self.recordings.get(&shape) {
            Some(recording) => recording.replay()?,
            None => {
                let memory = Rc::clone(&self.memory);
                let work: Work = Box::new(move || {
                    memory.borrow_mut().decode(shape);
                    Ok(())
                });
                self.recordings.insert(shape, Recording::new(None, work)?);
            }
        }
        self.reads.push_back(self.memory.borrow().read_back.clone());
        Ok(())
    }

    fn run(&mut self, chunks: &[Chunk], fed: &FedRows, draws: &[Draw]) -> Result<()> {
        self.eager += 1;
        let mut memory = self.memory.borrow_mut();
        let mut tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.tokens.clone()).collect();
        for (&row, &source) in fed.rows.iter().zip(&fed.sources) {
            tokens[row as usize] = memory.drawn.get(source as usize).map_or(0, |drawn| drawn.0);
        }
        let place = |chunk: &Chunk, at: usize| ((chunk.pages[at / PAGE] as usize + 1) * PAGE + at % PAGE) as i64;
        let mut rest = tokens.into_iter();
        for chunk in chunks {
            for (at, token) in (chunk.position..).zip(rest.by_ref().take(chunk.tokens.len())) {
                memory.cache.insert(place(chunk, at), value(token, at));
            }
        }
        let drawing = chunks.iter().filter(|chunk| chunk.draws);
        let drawn: Vec<_> = drawing
            .zip(draws)
            .map(|(chunk, draw)| {
                let seen = 0..chunk.position + chunk.tokens.len();
                Settings::of(draw).draw(seen.map(|at| memory.cache.get(&place(chunk, at)).copied().unwrap_or(0)))
            })
            .collect();
        if !drawn.is_empty() {
            self.reads.push_back(drawn.clone());
            memory.keep(drawn);
        }
        Ok(())
    }

    fn read(&mut self, rows: usize) -> Result<Drawn> {
        let drawn = self.reads.pop_front().expect("a pass to read");
        let (tokens, logprobs) = drawn.into_iter().take(rows).unzip();
        Ok(Drawn { tokens, logprobs })
    }
}

/// Requests that arrive at given calls.
struct Scenario {
    seed: u64,
    options: EngineOptions,
    limits: Limits,
    /// No request ever waits for a slot, a page or a row.
    roomy: bool,
    /// In order of the call before which they arrive.
    arrivals: Vec<(usize, Request)>,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Long responses use up the uniform numbers of one upload.
        let (long, roomy) = (rng.random_range(0..8) == 0, rng.random_range(0..3) == 0);
        let count: usize = rng.random_range(1..=12);
        let mut arrivals: Vec<_> = (0..count as u32)
            .map(|episode| {
                let kind = rng.random_range(1..4);
                // Beginnings are shared, but no two requests draw the same tokens.
                let mut prompt: Vec<u32> = vec![kind; rng.random_range(0..50)];
                prompt.push(20 + episode);
                let temperature = [0.0, 1.0, 1.0, 0.7][rng.random_range(0..4)];
                let top_k = if rng.random_range(0..8) == 0 { 3 } else { 0 };
                let top_p = if rng.random_range(0..8) == 0 { 0.5 } else { 1.0 };
                let min_p = if rng.random_range(0..8) == 0 { 0.25 } else { 0.0 };
                let sampling = Sampling { temperature, top_k, top_p, min_p };
                let max_new_tokens = rng.random_range(1..=if long { 100 } else { 24 });
                let key = NoiseKey { episode, ..NoiseKey::default() };
                (rng.random_range(0..40), Request { key, images: Vec::new(), prompt, max_new_tokens, sampling })
            })
            .collect();
        arrivals.sort_by_key(|arrival| arrival.0);
        let slots = if roomy { count } else { rng.random_range(1..=6) };
        // The longest request has 10 pages.
        let pages = if roomy { 10 * count } else { rng.random_range(10..=24) };
        let rows = slots + if roomy { 50 * count } else { rng.random_range(1..=60) };
        let eos = if long { Vec::new() } else { vec![0] };
        let options =
            EngineOptions { slots, capacity: 150, ends: eos.clone().into(), seed, ..EngineOptions::default() };
        let limits = Limits { slots, pages, rows, ends: eos.into(), ordered: false, gathers: false };
        Self { seed, options, limits, roomy, arrivals }
    }

    /// Calls `pass` until all requests have completed; the completions with the numbers of their calls.
    fn play(&self, mut pass: impl FnMut(&mut Scheduler) -> Vec<Completion>) -> Vec<(usize, Completion)> {
        let mut scheduler = Scheduler::new(self.limits.clone());
        let (mut arrivals, mut done) = (self.arrivals.iter().peekable(), Vec::new());
        for call in 0.. {
            while let Some((_, request)) = arrivals.next_if(|arrival| arrival.0 <= call) {
                scheduler.submit(request.clone());
            }
            if arrivals.peek().is_none() && scheduler.is_idle() {
                break;
            }
            done.extend(pass(&mut scheduler).into_iter().map(|completion| (call, completion)));
            assert!(call < 10_000, "seed {}: requests wait forever", self.seed);
        }
        let pages = scheduler.pages();
        let now = (pages.held(), pages.promised(), pages.room());
        assert_eq!(now, (0, 0, self.limits.pages), "seed {}: pages leak", self.seed);
        done
    }

    /// A pass's draws, each from its request's whole sequence.
    fn draws(&self, scheduler: &Scheduler, chunks: &[Chunk]) -> Vec<(u32, f32)> {
        let draw = |chunk: &Chunk| {
            let run = scheduler.request(chunk.id).expect("it runs");
            let Request { key, prompt, sampling, .. } = &run.request;
            let draw = Draw { sampling: *sampling, uniform: key.uniform(self.seed, run.planned_draw() as u32) };
            Settings::of(&draw).draw(prompt.iter().enumerate().map(|(at, &token)| value(token, at)))
        };
        chunks.iter().filter(|chunk| chunk.draws).map(draw).collect()
    }

    /// The plain engine.
    fn plain(&self) -> Vec<(usize, Completion)> {
        self.play(|scheduler| {
            let chunks = scheduler.plan();
            let drawn = self.draws(scheduler, &chunks);
            scheduler.record(&chunks, drawn)
        })
    }

    /// The plain engine with the rule: a draw that ends a response is recorded after one more pass.
    fn lingering(&self) -> Vec<(usize, Completion)> {
        let mut ended: Vec<(Chunk, (u32, f32))> = Vec::new();
        self.play(|scheduler| {
            let chunks = scheduler.plan();
            // A row too many of a request that has ended draws what is dropped.
            let drawn = self.draws(scheduler, &chunks);
            let (last, draws): (Vec<Chunk>, Vec<_>) = ended.drain(..).unzip();
            let done = scheduler.record(&last, draws);
            for (chunk, draw) in chunks.into_iter().filter(|chunk| chunk.draws).zip(drawn) {
                let Some(run) = scheduler.request(chunk.id) else { continue };
                if self.limits.ends.end(&[draw.0]).is_some() || run.drawn() + 1 >= run.request.max_new_tokens {
                    ended.push((chunk, draw));
                } else {
                    assert!(scheduler.record(&[chunk], [draw]).is_empty());
                }
            }
            done
        })
    }

    /// One pass ahead.
    fn ahead(&self, fake: &mut Fake) -> Vec<(usize, Completion)> {
        let mut ahead = Ahead::new(&self.options);
        self.play(|scheduler| ahead.step(scheduler, fake).expect("a pass"))
    }
}

fn by_request(done: &[(usize, Completion)]) -> HashMap<u32, Completion> {
    done.iter().map(|(_, completion)| (completion.key.episode, completion.clone())).collect()
}

#[test]
fn one_pass_ahead_gives_the_plain_engines_tokens_and_order() {
    let (mut replayed, mut eager, mut surplus) = (0, 0, 0);
    for seed in 0..10_000 {
        let scenario = Scenario::new(seed);
        let mut fake = Fake::default();
        let (ahead, plain) = (scenario.ahead(&mut fake), scenario.plain());
        assert_eq!(by_request(&ahead), by_request(&plain), "seed {seed}");
        assert_eq!(ahead, scenario.lingering(), "seed {seed}");
        if scenario.roomy {
            let later: Vec<_> = plain.into_iter().map(|(call, done)| (call + 1, done)).collect();
            assert_eq!(ahead, later, "seed {seed}");
        }
        replayed += fake.recordings.len();
        eager += fake.eager;
        surplus += ahead.iter().filter(|(_, done)| done.finished == FinishReason::Eos).count();
    }
    assert!(replayed > 10_000 && eager > 10_000 && surplus > 10_000, "{replayed} {eager} {surplus}");
}

#[test]
fn a_stale_buffer_is_found() {
    let columns =
        [Column::Token, Column::Source, Column::Position, Column::Place, Column::Length, Column::Slot, Column::Uniform];
    let settings = [INVERSE_TEMPERATURE, GREEDY, TOP_K, TOP_P, LOG_MIN_P].map(Stale::Setting);
    let rest = [Stale::PageTable, Stale::Slots, Stale::Drawn];
    for stale in columns.into_iter().map(Stale::Column).chain(settings).chain(rest) {
        let found = (0..300).any(|seed| {
            let scenario = Scenario::new(seed);
            let mut fake = Fake::default();
            fake.memory.borrow_mut().stale = Some(stale);
            by_request(&scenario.ahead(&mut fake)) != by_request(&scenario.plain())
        });
        assert!(found, "{stale:?} is not found");
    }
}
