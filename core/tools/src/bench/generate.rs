//! `nestor bench generate`: sampling of forced lengths, with the time of every pass.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::lengths::lengths;
use super::timing::{Times, first_and_hundredth, profiled};
use super::{BenchOptions, load, random_rows, report};
use crate::engine::{Completion, Engine, EngineOptions, NoiseKey, Request, Sampling, Weights};
use crate::model::Model;

/// Samples exactly `new` tokens at temperature 1 after each prompt (10 to 100 % of both with `ragged`); `tokens_per_s`
/// counts those.
pub fn generate(options: &BenchOptions) -> Result<Value> {
    let model = load(options)?;
    let longest = random_rows(&model, options.batch, options.prompt);
    let play = |run: usize| {
        let lengths = lengths(options, run);
        let prompts: Vec<_> = longest.iter().zip(&lengths).map(|(row, &(prompt, _))| row[..prompt].to_vec()).collect();
        let new: Vec<_> = lengths.iter().map(|&(_, new)| new).collect();
        complete(&model, &prompts, &new)
    };
    let mut passes = Vec::new();
    let times = Times::of(options.repeats, |run| {
        let begin = Instant::now();
        let generated = play(run)?;
        let seconds = begin.elapsed().as_secs_f64();
        passes.extend((run > 0).then_some(generated.passes));
        Ok(seconds)
    })?;
    let tokens = lengths(options, 0).iter().map(|(_, new)| new).sum();
    let mut report = report("generate", options, tokens, &times)?;
    let all = passes.iter().map(Vec::len).sum::<usize>();
    report["passes"] = json!(all / options.repeats);
    report["ms_per_pass"] = json!(1e3 * times.all.iter().sum::<f64>() / all as f64);
    let decoding: Vec<Pass> = passes.concat().into_iter().filter(|pass| !pass.prefills).collect();
    first_and_hundredth(&mut report, &decoding.iter().map(|pass| pass.seconds).collect::<Vec<_>>());
    report["decode"] = decode_report(&decoding, options.batch);
    if options.profile {
        let layers = model.config.num_hidden_layers;
        report["profile"] = profiled(options.device, layers, || Ok(play(options.repeats + 1)?.passes.len()))?;
    }
    Ok(report)
}

/// One pass of the engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    seconds: f64,
    /// Tokens drawn.
    rows: u64,
    /// Keys that the rows attend to, over all rows.
    context: u64,
    /// It also computed prompt tokens.
    prefills: bool,
}

/// Responses of forced lengths, and the passes that made them.
pub(super) struct Generated {
    /// In the order of the prompts.
    pub completions: Vec<Completion>,
    pub passes: Vec<Pass>,
}

/// Samples a response of exactly as many tokens as `new` says after each prompt.
pub(super) fn complete(model: &Model, prompts: &[Vec<u32>], new: &[usize]) -> Result<Generated> {
    let capacity = prompts.iter().zip(new).map(|(prompt, new)| prompt.len() + new).max().unwrap_or(0);
    let mut engine = Engine::new(EngineOptions { slots: prompts.len(), capacity, ..EngineOptions::default() });
    for (episode, (prompt, &max_new_tokens)) in prompts.iter().zip(new).enumerate() {
        let key = NoiseKey { episode: episode as u32, ..NoiseKey::default() };
        let (prompt, sampling) = (prompt.clone(), Sampling::default());
        engine.submit(Request { key, prompt, images: Vec::new(), max_new_tokens, sampling })?;
    }
    let weights = Weights::new(model)?;
    let (mut completions, mut passes, mut ended) = (Vec::with_capacity(prompts.len()), Vec::new(), 0);
    while !engine.is_idle() {
        let before = engine.counters();
        let begin = Instant::now();
        let done = engine.step(&weights)?;
        let seconds = begin.elapsed().as_secs_f64();
        let after = engine.counters();
        passes.push(Pass {
            seconds,
            rows: after.generated - before.generated,
            context: before.prefilled + before.shared + before.generated - ended,
            prefills: after.prefilled > before.prefilled,
        });
        ended +=
            done.iter().map(|done| (prompts[done.key.episode as usize].len() + done.tokens.len()) as u64).sum::<u64>();
        completions.extend(done);
    }
    let (generated, wanted) = (engine.counters().generated, new.iter().sum::<usize>());
    ensure!(generated == wanted as u64, "{generated} tokens were generated");
    completions.sort_by_key(|completion| completion.key.episode);
    Ok(Generated { completions, passes })
}

/// Means over the passes that only decode and have at least nine tenths of the batch, or over all that only decode. A
/// roofline is linear in rows and context, so the means compare with it. Null without such passes.
fn decode_report(decoding: &[Pass], batch: usize) -> Value {
    let full: Vec<Pass> = decoding.iter().copied().filter(|pass| 10 * pass.rows >= 9 * batch as u64).collect();
    let passes = if full.is_empty() { decoding } else { &full[..] };
    if passes.is_empty() {
        return Value::Null;
    }
    let mean = |value: fn(&Pass) -> f64| passes.iter().map(value).sum::<f64>() / passes.len() as f64;
    json!({
        "passes": passes.len(),
        "ms": 1e3 * mean(|pass| pass.seconds),
        "rows": mean(|pass| pass.rows as f64),
        "context": mean(|pass| pass.context as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_is_measured_where_the_batch_is_full() {
        let pass = |seconds, rows, context| Pass { seconds, rows, context, prefills: false };
        let some = [pass(0.004, 10, 100), pass(0.002, 10, 110), pass(0.001, 3, 40)];
        assert_eq!(decode_report(&some, 10), json!({ "passes": 2, "ms": 3.0, "rows": 10.0, "context": 105.0 }));
        assert_eq!(decode_report(&some[2..], 10)["rows"], 3.0);
        assert_eq!(decode_report(&[], 10), Value::Null);
    }
}
