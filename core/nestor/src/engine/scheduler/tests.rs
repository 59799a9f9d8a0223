//! The scheduler under a virtual clock: environments answer after random times, responses have random lengths, and the
//! cache is often too small. The tests compute nothing. They remember the contents of each page token by token instead, and
//! so find a row that would see another sequence's keys, or none.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use nestor_plugin::Image;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::engine::{NoiseKey, Sampling};

/// The episodes of one seed: their steps, and each step's response length and time of the environment.
struct Scenario {
    seed: u64,
    limits: Limits,
    transcript: bool,
    /// Per episode and step (response tokens, ticks of the environment after it).
    steps: Vec<Vec<(usize, u64)>>,
}

impl Scenario {
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
        let limits = Limits { slots, pages, rows, ends: vec![0].into(), ordered, gathers: rng.random() };
        Self { seed, limits, transcript: rng.random(), steps }
    }

    /// New tokens of a step's prompt: groups of three begin alike.
    fn prompt(&self, episode: u32, step: u32) -> Vec<u32> {
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

/// Record of a run.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    /// Tokens and their noise by (episode, step).
    responses: HashMap<(u32, u32), (Vec<u32>, Vec<f32>)>,
    batches: Vec<Vec<Chunk>>,
}

/// Plays a scenario; `shuffle` changes the environments' times and so the order of arrival. In ordered mode every pass waits
/// for all environments, as the player does.
fn play(scenario: &Scenario, shuffle: u64) -> Trace {
    let mut rng = ChaCha8Rng::seed_from_u64(scenario.seed ^ (shuffle << 32));
    let mut scheduler = Scheduler::new(scenario.limits.clone());
    let mut memory: HashMap<(PageId, usize), u64> = HashMap::new();
    let mut seen = Trace::default();
    let mut conversations: Vec<Vec<u32>> = scenario.steps.iter().map(|_| Vec::new()).collect();
    // (time, tie, episode, step): when an environment has answered.
    let mut arrivals: BinaryHeap<Reverse<(u64, u64, u32, u32)>> =
        (0..scenario.steps.len() as u32).map(|episode| Reverse((0, rng.random(), episode, 0))).collect();
    let mut now = 0u64;
    while !(arrivals.is_empty() && scheduler.is_idle()) {
        now += 1;
        if scheduler.is_idle() || scenario.limits.ordered {
            now = arrivals
                .iter()
                .map(|Reverse((time, ..))| *time)
                .fold(now, |now, time| if scenario.limits.ordered { now.max(time) } else { now.min(time).max(now) });
        }
        while let Some(&Reverse((time, _, episode, step))) = arrivals.peek() {
            if time > now && !scheduler.is_idle() {
                break;
            }
            now = now.max(time);
            arrivals.pop();
            let mut prompt = std::mem::take(&mut conversations[episode as usize]);
            if !scenario.transcript {
                prompt.clear();
            }
            prompt.extend(scenario.prompt(episode, step));
            conversations[episode as usize] = prompt.clone();
            let key = NoiseKey { episode, step, ..NoiseKey::default() };
            scheduler.submit(Request {
                key,
                images: Vec::new(),
                prompt,
                max_new_tokens: 24,
                sampling: Sampling::default(),
            });
        }
        let chunks = scheduler.plan();
        assert!(!chunks.is_empty(), "seed {}: requests wait forever", scenario.seed);
        check(scenario, &scheduler, &chunks, &mut memory);
        let drawn: Vec<(u32, f32)> = chunks
            .iter()
            .filter(|chunk| chunk.draws)
            .map(|chunk| {
                let run = scheduler.request(chunk.id).expect("it runs");
                scenario.policy(run.request.key, run.drawn() as u32)
            })
            .collect();
        seen.batches.push(chunks.clone());
        for done in scheduler.record(&chunks, drawn) {
            let (episode, step) = (done.key.episode, done.key.step);
            conversations[episode as usize].extend(&done.tokens);
            let known = seen.responses.insert((episode, step), (done.tokens, done.logprobs));
            assert!(known.is_none(), "seed {}: step {step} of episode {episode} came twice", scenario.seed);
            let steps = &scenario.steps[episode as usize];
            if step as usize + 1 < steps.len() {
                let delay = if shuffle == 0 { steps[step as usize].1 } else { rng.random_range(0..=12) };
                arrivals.push(Reverse((now + delay, rng.random(), episode, step + 1)));
            }
        }
    }
    let pages = scheduler.pages();
    assert_eq!((pages.held(), pages.promised(), pages.room()), (0, 0, scenario.limits.pages), "seed {}", scenario.seed);
    seen
}

/// Each token with all tokens before it, as one number.
fn prefixes(tokens: &[u32]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(0u64, |prefix, &token| {
        *prefix = (*prefix ^ u64::from(token)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Some(*prefix)
    })
}

/// Writes the pass's rows to the remembered pages, then checks what every row would see.
fn check(scenario: &Scenario, scheduler: &Scheduler, chunks: &[Chunk], memory: &mut HashMap<(PageId, usize), u64>) {
    let place = |chunk: &Chunk, position: usize| (chunk.pages[position / PAGE], position % PAGE);
    let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    assert!(
        rows <= scenario.limits.rows && scheduler.running().len() <= scenario.limits.slots,
        "seed {}",
        scenario.seed
    );
    assert!(scheduler.pages().touched() <= scenario.limits.pages, "seed {}", scenario.seed);
    let sequence = |chunk: &Chunk| &scheduler.request(chunk.id).expect("it runs").request.prompt;
    for chunk in chunks {
        let end = chunk.position + chunk.tokens.len();
        assert_eq!(sequence(chunk)[chunk.position..end], chunk.tokens, "seed {}", scenario.seed);
        // Keys and values depend on a token and all tokens before it.
        for (position, prefix) in prefixes(sequence(chunk)).enumerate().take(end).skip(chunk.position) {
            memory.insert(place(chunk, position), prefix);
        }
    }
    for chunk in chunks {
        let end = chunk.position + chunk.tokens.len();
        for (position, prefix) in prefixes(sequence(chunk)).enumerate().take(end) {
            assert_eq!(memory.get(&place(chunk, position)), Some(&prefix), "seed {}: {position}", scenario.seed);
        }
    }
}

#[test]
fn no_turn_is_lost_no_page_leaks_and_order_changes_no_noise() {
    let mut shared = 0;
    for seed in 0..10_000 {
        let scenario = Scenario::new(seed, false);
        let (one, other) = (play(&scenario, 0), play(&scenario, 1));
        assert_eq!(one.responses.len(), scenario.steps.iter().map(Vec::len).sum::<usize>(), "seed {seed}");
        assert_eq!(one.responses, other.responses, "seed {seed}");
        shared += usize::from(one.batches[0].len() > 1);
    }
    assert!(shared > 1_000, "the scenarios have become too simple: {shared}");
}

#[test]
fn in_order_the_batches_do_not_depend_on_arrival() {
    for seed in 0..10_000 {
        let scenario = Scenario::new(seed, true);
        assert_eq!(play(&scenario, 0), play(&scenario, 1), "seed {seed}");
    }
}

#[test]
fn siblings_share_pages_up_to_an_image_that_differs() {
    let image = |colour: u8| PlacedImage {
        start: 20,
        tokens: 12,
        squares: [3, 4],
        image: Image::new(2, 1, vec![colour; 6]).expect("an image").into(),
    };
    let request = |episode: u32, colour: u8| {
        let mut prompt: Vec<u32> = (0..64).collect();
        prompt[20..32].fill(99);
        let key = NoiseKey { episode, ..NoiseKey::default() };
        Request { key, prompt, images: vec![image(colour)], max_new_tokens: 4, sampling: Sampling::default() }
    };
    let limits = Limits { slots: 4, pages: 40, rows: 500, ends: Ends::default(), ordered: false, gathers: false };
    let mut scheduler = Scheduler::new(limits);
    // The same picture twice, and another one under the same tokens.
    for (episode, colour) in [(0, 1), (1, 1), (2, 2)] {
        scheduler.submit(request(episode, colour));
    }
    let chunks = scheduler.plan();
    let firsts: Vec<usize> = chunks.iter().map(|chunk| chunk.position).collect();
    assert_eq!(firsts, [0, 48, 16], "three pages of the same picture; before the other one, the first page alone");
    assert_eq!(scheduler.counters().shared, 48 + 16);
    assert!(chunks[0].pages[..3] == chunks[1].pages[..3] && chunks[0].pages[1] != chunks[2].pages[1]);

    // Positions are those of M-RoPE, and a chunk that begins inside the picture has the rest of it.
    let rotary = |chunk: &Chunk, place: usize| chunk.rotary[place - chunk.position];
    assert_eq!(
        [19, 20, 25, 31, 32].map(|place| rotary(&chunks[0], place)),
        [[19; 3], [20; 3], [20, 21, 21], [20, 22, 23], [24; 3]]
    );
    assert_eq!(rotary(&chunks[1], 63), [55; 3]);
    let parts = |chunk: &Chunk| chunk.images.iter().map(|part| (part.row, part.first, part.count)).collect::<Vec<_>>();
    assert_eq!(
        (parts(&chunks[0]), parts(&chunks[1]), parts(&chunks[2])),
        (vec![(20, 0, 12)], vec![], vec![(4, 0, 12)])
    );
    scheduler.record(&chunks, [(7, -1.0); 3]);
    assert_eq!(scheduler.plan()[0].rotary, [[56; 3]], "a drawn token continues the text");

    // A pass that ends inside a picture.
    let mut scheduler =
        Scheduler::new(Limits { slots: 1, pages: 40, rows: 24, ends: Ends::default(), ordered: false, gathers: false });
    scheduler.submit(request(0, 1));
    assert_eq!(parts(&scheduler.plan()[0]), [(20, 0, 4)]);
    let next = scheduler.plan();
    assert_eq!((parts(&next[0]), rotary(&next[0], 24)), (vec![(0, 4, 8)], [20, 21, 20]));
}

#[test]
fn requests_join_in_groups_beside_those_that_run() {
    let limits = Limits { slots: 20, pages: 40, rows: 500, ends: Ends::default(), ordered: false, gathers: true };
    let mut scheduler = Scheduler::new(limits);
    let request = |episode: u32| {
        let key = NoiseKey { episode, ..NoiseKey::default() };
        Request { key, prompt: vec![episode], images: Vec::new(), max_new_tokens: 9, sampling: Sampling::default() }
    };
    let rows = |scheduler: &mut Scheduler| {
        let chunks = scheduler.plan();
        scheduler.record(&chunks, vec![(7, -1.0); chunks.len()]);
        chunks.len()
    };
    (0..12).for_each(|episode| scheduler.submit(request(episode)));
    assert_eq!(rows(&mut scheduler), 12, "nothing runs that they would disturb");
    scheduler.submit(request(12));
    assert_eq!(rows(&mut scheduler), 12, "one is less than an eighth of twelve");
    scheduler.submit(request(13));
    assert_eq!(rows(&mut scheduler), 14);
}

/// ALFWorld as published: 128 environments, prompts of some 521 tokens, responses of some 81, requests that join in groups.
/// Rows alone in their chunk that do not come first would attend to a copy of their pages (`engine/paged_share`).
#[test]
fn rows_that_decode_come_first_in_the_published_shape() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let limits =
        Limits { slots: 128, pages: 128 * 40, rows: 4096, ends: Ends::default(), ordered: false, gathers: true };
    let mut scheduler = Scheduler::new(limits);
    let (mut turns, mut first, mut passes) = ([0u32; 128], 0, 0);
    let mut asks: Vec<u32> = (0..128).collect();
    while !(asks.is_empty() && scheduler.is_idle()) {
        for episode in asks.split_off(asks.len() / 4) {
            let (instruction, own) = (380, rng.random_range(60..220));
            let mut prompt = vec![1; instruction];
            prompt.extend((0..own).map(|token| 2 + episode * 4096 + turns[episode as usize] * 256 + token));
            let key = NoiseKey { episode, step: turns[episode as usize], ..NoiseKey::default() };
            let max_new_tokens = rng.random_range(20..142);
            scheduler.submit(Request {
                key,
                images: Vec::new(),
                prompt,
                max_new_tokens,
                sampling: Sampling::default(),
            });
        }
        let chunks = scheduler.plan();
        first += decoding_rows(&chunks) as u64;
        passes += u64::from(chunks.iter().any(|chunk| chunk.tokens.len() > 1));
        let draws = chunks.iter().filter(|chunk| chunk.draws).count();
        for done in scheduler.record(&chunks, vec![(7, 0.0); draws]) {
            turns[done.key.episode as usize] += 1;
            if turns[done.key.episode as usize] < 5 {
                asks.push(done.key.episode);
            }
        }
    }
    let counters = scheduler.counters();
    assert!(passes > 20, "{passes} passes have prompts");
    assert!(counters.alone > 40_000 && first as f64 > 0.99 * counters.alone as f64, "{first} of {counters:?}");
}

#[test]
fn a_cancelled_request_leaves_its_pages_and_others_as_they_are() {
    let limits = Limits { slots: 2, pages: 8, rows: 100, ends: Ends::default(), ordered: false, gathers: false };
    let key = |episode| NoiseKey { episode, ..NoiseKey::default() };
    let request = |episode: u32| Request {
        key: key(episode),
        prompt: vec![episode; 20],
        images: Vec::new(),
        max_new_tokens: 9,
        sampling: Sampling::default(),
    };
    let mut scheduler = Scheduler::new(limits);
    (0..3).for_each(|episode| scheduler.submit(request(episode)));
    let chunks = scheduler.plan();
    // The pass is under way: the draws of the first request are dropped.
    scheduler.cancel(key(0));
    assert_eq!(scheduler.record(&chunks, [(7, -1.0), (8, -2.0)]), []);
    assert_eq!((scheduler.drawn(key(0)), scheduler.drawn(key(2))), (None, None));
    assert_eq!(scheduler.drawn(key(1)), Some((&[8][..], &[-2.0][..])));
    let running =
        |scheduler: &Scheduler| scheduler.running().iter().map(|run| run.request.key.episode).collect::<Vec<_>>();
    scheduler.plan();
    assert_eq!(running(&scheduler), [1, 2], "the slot is free");
    [1, 2, 3].into_iter().for_each(|episode| scheduler.cancel(key(episode)));
    let pages = scheduler.pages();
    assert!(scheduler.is_idle() && (pages.held(), pages.promised()) == (0, 0));
}
