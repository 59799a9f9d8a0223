//! `nestor bench logprob-diff`: the difference between the engine's log-probs and those of the update's own pass, over the
//! same tokens under the same weights.

use anyhow::Result;
use serde_json::{Value, json};

use super::generate::complete;
use super::{BenchOptions, load, random_batch, random_rows};
use crate::model::StoredType;
use crate::policy::Network;
use crate::policy::update::{UpdateSettings, gradients};
use crate::recipe::Update;
use crate::shard::Ranks;

/// Samples `new` tokens after each prompt, computes the gradient of a loss on them as an update does, and compares the
/// log-probs of both.
pub fn logprob_diff(options: &BenchOptions) -> Result<Value> {
    let model = load(options)?;
    let prompts = random_rows(&model, options.batch, options.prompt);
    let completions = complete(&model, &prompts, &vec![options.new; options.batch])?.completions;
    let sequences = prompts.into_iter().zip(&completions);
    let sequences = sequences.map(|(prompt, c)| ([&prompt[..], &c.tokens].concat(), options.prompt));
    let mut batch = random_batch(sequences);
    batch.rows.logprobs = completions.iter().flat_map(|completion| &completion.logprobs).copied().collect();
    let section = json!({ "mini_batch": options.batch, "lr": 1e-6, "recompute": options.recompute });
    let update: Update = serde_json::from_value(section)?;
    let settings =
        UpdateSettings { update: &update, lr: 0.0, temperature: 1.0, max_response_tokens: options.new, seed: 0 };
    let all: Vec<usize> = (0..options.batch).collect();
    let mut policy = Network::new(model, &Ranks::solo(options.device))?;
    let difference = gradients(&mut policy, &batch, &all, &settings)?.logprob_diff;
    Ok(json!({
        "work": "logprob-diff",
        "batch": options.batch,
        "prompt": options.prompt,
        "new": options.new,
        "tokens": options.batch * options.new,
        "dtype": StoredType::of(options.kind)?.name,
        "device": if options.device.is_cuda() { "cuda" } else { "cpu" },
        "threads": tch::get_num_threads(),
        "mean": difference.mean,
        "max": difference.max,
    }))
}
