//! `nestor bench`: seconds and tokens per second of stated work, the median of some repetitions after a first one
//! that does not count.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use rand_chacha::rand_core::Rng;
use serde_json::{Value, json};
use tch::{Device, Kind};

use crate::engine::{Engine, EngineOptions, NoiseKey, Request, Sampling};
use crate::input_error;
use crate::model::{Model, weights};
use crate::policy::score;

/// The work.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The model folder.
    pub dir: PathBuf,
    /// Sequences at once.
    pub batch: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens of each response.
    pub new: usize,
    /// The compute type.
    pub kind: Kind,
    /// Where to compute.
    pub device: Device,
    /// Repetitions that count.
    pub repeats: usize,
}

/// Generation of exactly `new` tokens at temperature 1 after each prompt; `tokens_per_s` counts those.
pub fn generate(options: &BenchOptions) -> Result<Value> {
    let model = load(options)?;
    let prompts = random_rows(&model, options.batch, options.prompt);
    let seconds = median_seconds(options.repeats, || {
        let mut engine = Engine::new(EngineOptions {
            slots: options.batch,
            capacity: options.prompt + options.new,
            ..EngineOptions::default()
        });
        for (episode, prompt) in prompts.iter().enumerate() {
            let key = NoiseKey { episode: episode as u32, ..NoiseKey::default() };
            let (prompt, sampling) = (prompt.clone(), Sampling::default());
            engine.submit(Request { key, prompt, max_new_tokens: options.new, sampling })?;
        }
        while !engine.is_idle() {
            engine.step(&model)?;
        }
        let generated = engine.take_counters().generated;
        ensure!(generated == (options.batch * options.new) as u64, "{generated} tokens were generated");
        Ok(())
    })?;
    Ok(report("generate", options, options.batch * options.new, seconds))
}

/// Log-probs of whole sequences of `prompt + new` tokens; `tokens_per_s` counts all of them.
pub fn score(options: &BenchOptions) -> Result<Value> {
    let model = load(options)?;
    let length = options.prompt + options.new;
    let rows = random_rows(&model, options.batch, length);
    let seconds = median_seconds(options.repeats, || score::logprobs(&model, &rows).map(drop))?;
    Ok(report("score", options, options.batch * length, seconds))
}

fn load(options: &BenchOptions) -> Result<Model> {
    let BenchOptions { batch, prompt, new, repeats, .. } = options;
    if [batch, prompt, new, repeats].contains(&&0) {
        return Err(input_error!("--batch, --prompt, --new and --repeats must be at least 1"));
    }
    weights::load(&options.dir, options.kind, options.device)
}

/// Rows of random tokens, no two alike, the same in every run.
fn random_rows(model: &Model, rows: usize, length: usize) -> Vec<Vec<u32>> {
    let row = |row: usize| {
        let mut rng = NoiseKey { episode: row as u32, ..NoiseKey::default() }.rng(0, 0);
        (0..length).map(|_| ((u64::from(rng.next_u32()) * model.config.vocab_size as u64) >> 32) as u32).collect()
    };
    (0..rows).map(row).collect()
}

/// Median duration of the work.
fn median_seconds(repeats: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let mut seconds = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let begin = Instant::now();
        work()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// What a benchmark prints.
fn report(work: &str, options: &BenchOptions, tokens: usize, seconds: f64) -> Value {
    json!({
        "work": work,
        "batch": options.batch,
        "prompt": options.prompt,
        "new": options.new,
        "tokens": tokens,
        "dtype": if options.kind == Kind::BFloat16 { "bfloat16" } else { "float32" },
        "device": if options.device.is_cuda() { "cuda" } else { "cpu" },
        "threads": tch::get_num_threads(),
        "repeats": options.repeats,
        "seconds": seconds,
        "tokens_per_s": tokens as f64 / seconds,
    })
}
