//! `nestor bench logprob-diff`: the difference between the engine's log-probs and those of the update's own pass, over the
//! same tokens under the same weights.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};
use tch::{Device, Kind};

use super::generate::complete;
use super::{check_sizes, random_batch, random_rows};
use crate::model::{Model, StoredType, hub, weights};
use crate::policy::Network;
use crate::policy::update::{Difference, UpdateSettings, gradients};
use crate::recipe::{Recompute, Update};
use crate::shard::{Ranks, update_rule};

#[derive(Debug, Clone)]
pub struct LogprobDiffOptions {
    pub dir: PathBuf,
    pub batch: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens of each response.
    pub new: usize,
    /// Blocks that the update recomputes in its backward pass.
    pub recompute: Recompute,
    /// Compute types, one after the other.
    pub kinds: Vec<Kind>,
    pub device: Device,
}

/// The difference in each compute type.
pub fn logprob_diff(options: &LogprobDiffOptions) -> Result<Value> {
    let LogprobDiffOptions { dir, batch, prompt, new, kinds, device, .. } = options;
    check_sizes(*batch, *prompt, *new)?;
    let dir = hub::folder(dir)?;
    let mut types = serde_json::Map::new();
    for &kind in kinds {
        let Difference { mean, max } = difference(weights::load(&dir, kind, *device)?, options)?;
        types.insert(StoredType::of(kind)?.name.into(), json!({ "mean": mean, "max": max }));
    }
    Ok(json!({
        "work": "logprob-diff",
        "batch": batch,
        "prompt": prompt,
        "new": new,
        "tokens": batch * new,
        "device": if device.is_cuda() { "cuda" } else { "cpu" },
        "threads": tch::get_num_threads(),
        "types": types,
    }))
}

/// Samples `new` tokens after each prompt, computes the gradient of a loss on them as an update does, and compares the
/// log-probs of both.
fn difference(model: Model, options: &LogprobDiffOptions) -> Result<Difference> {
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
    let mut policy = Network::new(model, update_rule(&update.optimizer), &Ranks::solo(options.device))?;
    Ok(gradients(&mut policy, &batch, &all, &settings)?.logprob_diff)
}
