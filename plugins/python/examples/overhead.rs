//! The time of one step of an echo class in Python: `cargo run --release -p nestor-python --example overhead [STEPS]`.
//! 64 environments, two threads; prints the median, the 90th and the 99th percentile in microseconds.

use std::time::Instant;

use anyhow::{Context, Result};
use nestor_plugin::{Environment, Instance, Start, parse_config};
use nestor_python::{Play, PythonEnv};
use serde_json::json;

const ENVIRONMENTS: u64 = 64;
const THREADS: u64 = 2;

fn main() -> Result<()> {
    let steps: usize = std::env::args().nth(1).map_or(Ok(500), |text| text.parse()).context("STEPS")?;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let world = PythonEnv::open(parse_config(&json!({ "class": "echo:Echo", "path": [path] }).to_string())?)?;
    let play = |thread: u64| -> Result<Vec<f64>> {
        let mut times = Vec::new();
        let envs = (0..ENVIRONMENTS / THREADS).map(|env| {
            let mut play = world.spawn()?;
            play.reset(&world, Start { split: "train", task: env, seed: thread })?;
            Ok(play)
        });
        let mut envs: Vec<Play> = envs.collect::<Result<_>>()?;
        for step in 0..steps {
            for play in &mut envs {
                let begin = Instant::now();
                play.step(&world, &format!("<think>some thought</think><action>go to shelf {step}</action>"))?;
                times.push(begin.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(times)
    };
    let begin = Instant::now();
    let mut times = std::thread::scope(|scope| -> Result<Vec<f64>> {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || play(thread))).collect();
        let results =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?);
        Ok(results.collect::<Result<Vec<_>>>()?.concat())
    })?;
    let rate = times.len() as f64 / begin.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    println!(
        "{} steps: median {:.0} us, 90 % {:.0} us, 99 % {:.0} us, {rate:.0} steps/s",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99)
    );
    Ok(())
}
