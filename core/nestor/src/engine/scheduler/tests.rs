//! The scheduler under a virtual clock: environments answer after random times, responses have random lengths, and the
//! cache is often too small. Nothing is computed; what a page would hold is remembered token by token instead, so that a
//! row that would see another sequence's keys, or none, is found.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::engine::{NoiseKey, Sampling};

/// Episodes that one seed plays: how many steps, and each step's response length and time of the environment.
struct World {
    seed: u64,
    limits: Limits,
    transcript: bool,
    /// Per episode and step (response tokens, ticks of the environment after it).
    steps: Vec<Vec<(usize, u64)>>,
}

impl World {
    fn new(seed: u64, ordered: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let steps = (0..rng.random_range(1..=9))
            .map(|_| {
                (0..rng.random_range(1..=4)).map(|_| (rng.random_range(1..=24), rng.random_range(0..=12))).collect()
            })
            .collect();
        let slots = rng.random_range(1..=6);
        // A whole conversation has up to 9 pages.
        let pages = rng.random_range(9..=24);
        let rows = slots + rng.random_range(1..=40);
        let limits = Limits { slots, pages, rows, eos: vec![0], ordered };
        Self { seed, limits, transcript: rng.random(), steps }
    }

    /// New tokens of a step's prompt: groups of three begin alike.
    fn says(&self, episode: u32, step: u32) -> Vec<u32> {
        let group = if step == 0 { episode / 3 } else { episode };
        let mut tokens = vec![group + 1; if self.transcript { 8 } else { 37 }];
        tokens.extend([episode + 1, step + 1].iter().take(if step == 0 { (episode % 2) as usize } else { 2 }));
        tokens
    }

    /// The token at an address: 0 ends the response.
    fn policy(&self, key: NoiseKey, token: u32) -> (u32, f32) {
        let noise = key.uniform(self.seed, token);
        let ends = token as usize + 1 == self.steps[key.episode as usize][key.step as usize].0;
        (if ends { 0 } else { 1 + (noise * 5.0) as u32 }, noise)
    }
}

/// What was seen of a run.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// Tokens and their noise by (episode, step).
    responses: HashMap<(u32, u32), (Vec<u32>, Vec<f32>)>,
    batches: Vec<Vec<Chunk>>,
}

/// Plays a world; `shuffle` changes the environments' times and so the order of arrival. In ordered mode every pass waits
/// for all environments, as the player does.
fn play(world: &World, shuffle: u64) -> Seen {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed ^ (shuffle << 32));
    let mut scheduler = Scheduler::new(world.limits.clone());
    let mut memory: HashMap<(PageId, usize), u64> = HashMap::new();
    let mut seen = Seen::default();
    let mut conversations: Vec<Vec<u32>> = world.steps.iter().map(|_| Vec::new()).collect();
    // (time, tie, episode, step): when an environment has answered.
    let mut arrivals: BinaryHeap<Reverse<(u64, u64, u32, u32)>> =
        (0..world.steps.len() as u32).map(|episode| Reverse((0, rng.random(), episode, 0))).collect();
    let mut now = 0u64;
    while !(arrivals.is_empty() && scheduler.is_idle()) {
        now += 1;
        if scheduler.is_idle() || world.limits.ordered {
            now = arrivals
                .iter()
                .map(|Reverse((time, ..))| *time)
                .fold(now, |now, time| if world.limits.ordered { now.max(time) } else { now.min(time).max(now) });
        }
        while let Some(&Reverse((time, _, episode, step))) = arrivals.peek() {
            if time > now && !scheduler.is_idle() {
                break;
            }
            now = now.max(time);
            arrivals.pop();
            let mut prompt = std::mem::take(&mut conversations[episode as usize]);
            if !world.transcript {
                prompt.clear();
            }
            prompt.extend(world.says(episode, step));
            conversations[episode as usize] = prompt.clone();
            let key = NoiseKey { episode, step, ..NoiseKey::default() };
            scheduler.submit(Request { key, prompt, max_new_tokens: 24, sampling: Sampling::default() });
        }
        let chunks = scheduler.plan();
        assert!(!chunks.is_empty(), "seed {}: requests wait for ever", world.seed);
        check(world, &scheduler, &chunks, &mut memory);
        let drawn: Vec<(u32, f32)> = chunks
            .iter()
            .filter(|chunk| chunk.draws)
            .map(|chunk| {
                let run = &scheduler.running()[chunk.running];
                world.policy(run.request.key, run.drawn() as u32)
            })
            .collect();
        seen.batches.push(chunks.clone());
        for done in scheduler.record(&chunks, drawn) {
            let (episode, step) = (done.key.episode, done.key.step);
            conversations[episode as usize].extend(&done.tokens);
            let known = seen.responses.insert((episode, step), (done.tokens, done.logprobs));
            assert!(known.is_none(), "seed {}: step {step} of episode {episode} came twice", world.seed);
            let steps = &world.steps[episode as usize];
            if step as usize + 1 < steps.len() {
                let delay = if shuffle == 0 { steps[step as usize].1 } else { rng.random_range(0..=12) };
                arrivals.push(Reverse((now + delay, rng.random(), episode, step + 1)));
            }
        }
    }
    let pages = scheduler.pages();
    assert_eq!((pages.held(), pages.promised(), pages.room()), (0, 0, world.limits.pages), "seed {}", world.seed);
    seen
}

/// Every token together with all that stand before it, as one number each.
fn prefixes(tokens: &[u32]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(0u64, |prefix, &token| {
        *prefix = (*prefix ^ u64::from(token)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Some(*prefix)
    })
}

/// Writes the pass's rows to the remembered pages, then looks at what every row would see.
fn check(world: &World, scheduler: &Scheduler, chunks: &[Chunk], memory: &mut HashMap<(PageId, usize), u64>) {
    let place = |chunk: &Chunk, position: usize| (chunk.pages[position / PAGE], position % PAGE);
    let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    assert!(rows <= world.limits.rows && scheduler.running().len() <= world.limits.slots, "seed {}", world.seed);
    assert!(scheduler.pages().touched() <= world.limits.pages, "seed {}", world.seed);
    let sequence = |chunk: &Chunk| &scheduler.running()[chunk.running].request.prompt;
    for chunk in chunks {
        let end = chunk.position + chunk.tokens.len();
        assert_eq!(sequence(chunk)[chunk.position..end], chunk.tokens, "seed {}", world.seed);
        // Keys and values are those of a token after all that stand before it.
        for (position, prefix) in prefixes(sequence(chunk)).enumerate().take(end).skip(chunk.position) {
            memory.insert(place(chunk, position), prefix);
        }
    }
    for chunk in chunks {
        let end = chunk.position + chunk.tokens.len();
        for (position, prefix) in prefixes(sequence(chunk)).enumerate().take(end) {
            assert_eq!(memory.get(&place(chunk, position)), Some(&prefix), "seed {}: {position}", world.seed);
        }
    }
}

#[test]
fn no_turn_is_lost_no_page_leaks_and_order_changes_no_noise() {
    let mut shared = 0;
    for seed in 0..10_000 {
        let world = World::new(seed, false);
        let (one, other) = (play(&world, 0), play(&world, 1));
        assert_eq!(one.responses.len(), world.steps.iter().map(Vec::len).sum::<usize>(), "seed {seed}");
        assert_eq!(one.responses, other.responses, "seed {seed}");
        shared += usize::from(one.batches[0].len() > 1);
    }
    assert!(shared > 1_000, "the worlds have become too simple: {shared}");
}

#[test]
fn in_order_the_batches_do_not_depend_on_arrival() {
    for seed in 0..10_000 {
        let world = World::new(seed, true);
        assert_eq!(play(&world, 0), play(&world, 1), "seed {seed}");
    }
}
