//! Planted runs: a true difference of 10 points is called, and two groups of one truth are called different in at most
//! 5 % of 1,000 pairs. The truth is a logistic model of outcomes: a task's difficulty, a seed's effect that both groups
//! share, a run's own effect, and a drift from one evaluation to the next.

#![allow(clippy::unwrap_used)] // a test may fail so

use std::collections::BTreeMap;

use nestor_compare::{Difference, Metrics, Options, Panel, Run, Won, compare};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

const TASKS: usize = 60;
const EVALUATIONS: u64 = 6;
/// Spread of the difficulty of tasks, in logits.
const DIFFICULTY: f64 = 1.5;

/// Standard deviations of effects in logits, 0.25 of which are about 4 points.
#[derive(Debug, Clone, Copy)]
struct Noise {
    /// A seed, in both groups.
    seed: f64,
    /// A run.
    run: f64,
    /// An evaluation.
    evaluation: f64,
}

struct World {
    rng: ChaCha8Rng,
    difficulty: Vec<f64>,
    noise: Noise,
    samples: u32,
}

impl World {
    fn new(seed: u64, noise: Noise, samples: u32) -> Self {
        let mut world = Self { rng: ChaCha8Rng::seed_from_u64(seed), difficulty: Vec::new(), noise, samples };
        world.difficulty = (0..TASKS).map(|_| DIFFICULTY * world.normal()).collect();
        world
    }

    /// A standard normal number, after Box and Muller.
    fn normal(&mut self) -> f64 {
        let (a, b): (f64, f64) = (self.rng.random(), self.rng.random());
        (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// The ability at which the tasks' mean success is `rate`.
    fn ability(&self, rate: f64) -> f64 {
        let mean = |ability: f64| self.difficulty.iter().map(|d| logistic(ability - d)).sum::<f64>() / TASKS as f64;
        let (mut low, mut high) = (-20.0, 20.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if mean(middle) < rate { low = middle } else { high = middle }
        }
        low
    }

    /// Two groups with these seeds and these true rates of success.
    fn groups(&mut self, seeds: [&[u64]; 2], rates: [f64; 2]) -> Vec<Run> {
        let all: Vec<u64> = seeds.concat();
        let effects: BTreeMap<u64, f64> = all.iter().map(|&seed| (seed, self.noise.seed * self.normal())).collect();
        let mut runs = Vec::new();
        for (name, (seeds, rate)) in ["first", "second"].into_iter().zip(seeds.into_iter().zip(rates)) {
            let ability = self.ability(rate);
            for seed in seeds {
                let own = ability + effects[seed] + self.noise.run * self.normal();
                runs.push(self.run(name, *seed, own));
            }
        }
        runs
    }

    fn run(&mut self, estimator: &str, seed: u64, ability: f64) -> Run {
        let mut outcomes = BTreeMap::new();
        for evaluation in 1..=EVALUATIONS {
            let now = ability + self.noise.evaluation * self.normal();
            let won = |task: usize| {
                let p = logistic(now - self.difficulty[task]);
                (0..self.samples).filter(|_| self.rng.random::<f64>() < p).count() as u32
            };
            outcomes.insert(10 * evaluation, Won((0..TASKS).map(won).collect()));
        }
        let (name, sha256) = ("planted".to_owned(), "0".into());
        let panel =
            Panel { name, sha256, samples: self.samples, temperature: 1.0, tasks: TASKS, types: BTreeMap::new() };
        Run {
            name: format!("{estimator}-{seed}"),
            recipe: json!({"seed": seed, "estimator": {"plugin": estimator}}),
            facts: [("start_weights".to_owned(), json!("1"))].into_iter().collect(),
            panel,
            outcomes,
            metrics: Metrics::default(),
        }
    }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

const FIVE: [u64; 5] = [1, 2, 3, 4, 5];
const OTHERS: [u64; 5] = [6, 7, 8, 9, 10];

const NOISES: [Noise; 4] = [
    Noise { seed: 0.0, run: 0.0, evaluation: 0.0 },
    Noise { seed: 0.2, run: 0.1, evaluation: 0.1 },
    Noise { seed: 0.0, run: 0.25, evaluation: 0.25 },
    Noise { seed: 0.5, run: 0.5, evaluation: 0.0 },
];

fn difference(runs: &[Run], window: Option<usize>) -> Difference {
    let options = Options { draws: 200, halvings: 0, window, ..Options::default() };
    compare(runs, &options).unwrap().differences.remove(0)
}

/// The share of `pairs` pairs of groups that are called different.
fn called(noise: Noise, seeds: [&[u64]; 2], rates: [f64; 2], pairs: u64, window: Option<usize>) -> f64 {
    let calls = (0..pairs).filter(|&pair| {
        let mut world = World::new(pair, noise, 1 + (pair % 2) as u32);
        difference(&world.groups(seeds, rates), window).exceeds_noise
    });
    calls.count() as f64 / pairs as f64
}

/// The measured rates are 0.5 % to 4.4 %, the higher the more of the noise is between runs.
#[test]
fn groups_of_one_truth_are_rarely_called_different() {
    for noise in NOISES {
        for (seeds, window) in [([&FIVE, &FIVE], None), ([&FIVE, &OTHERS], Some(2))] {
            let rate = called(noise, seeds.map(|seeds| &seeds[..]), [0.4, 0.4], 1000, window);
            println!("{noise:?}, seeds {seeds:?}, window {window:?}: {rate}");
            assert!(rate <= 0.05, "{noise:?}, seeds {seeds:?}, window {window:?}: {rate}");
        }
    }
}

/// The shares called are measured: they show which noise five seeds can bear.
#[test]
fn ten_points_with_five_seeds_are_called() {
    for (noise, least) in NOISES.into_iter().zip([0.95, 0.8, 0.4, 0.1]) {
        let rate = called(noise, [&FIVE, &FIVE], [0.4, 0.5], 200, None);
        println!("{noise:?}: {rate}");
        assert!(rate >= least, "{noise:?}: {rate}");
    }
}

/// The interval covers the truth as often as it says.
#[test]
fn the_interval_covers_the_truth() {
    let noise = NOISES[1];
    let covered = (0..400).filter(|&pair| {
        let mut world = World::new(pair, noise, 1);
        let [low, high] = difference(&world.groups([&FIVE, &FIVE], [0.4, 0.45]), None).interval.unwrap();
        low <= 0.05 && 0.05 <= high
    });
    let share = covered.count() as f64 / 400.0;
    println!("{share}");
    assert!((0.92..=0.98).contains(&share), "{share}");
}
