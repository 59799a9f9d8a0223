//! `nestor bench logprob-diff`: the difference between the engine's log-probs and those of the update's own pass, over the
//! same tokens under the same weights.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use tch::{Device, Kind};

use super::generate::complete;
use super::{check_sizes, random_batch, random_rows};
use crate::files::read_tokens;
use crate::input_error;
use crate::model::{Config, Model, StoredType, hub, weights};
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
    /// A file of prompts in place of `batch` random ones of that length.
    pub prompts: Option<PathBuf>,
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
    let dir = hub::folder(dir)?;
    let read = options.prompts.as_deref().map(|file| read_prompts(file, &Config::load(&dir)?)).transpose()?;
    let longest = |prompts: &Vec<Vec<u32>>| prompts.iter().map(Vec::len).max().unwrap_or(0);
    let (batch, prompt) = read.as_ref().map_or((*batch, *prompt), |prompts| (prompts.len(), longest(prompts)));
    check_sizes(batch, prompt, *new)?;
    let mut types = serde_json::Map::new();
    for &kind in kinds {
        let model = weights::load(&dir, kind, *device)?;
        let prompts = read.clone().unwrap_or_else(|| random_rows(&model, batch, prompt));
        let Difference { mean, max } = difference(model, prompts, options)?;
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

/// The prompts of a file.
fn read_prompts(file: &Path, config: &Config) -> Result<Vec<Vec<u32>>> {
    let prompts: Vec<_> = read_tokens(file)?.into_iter().map(|row| row.tokens).collect();
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(input_error!("{}: needs at least one row, and at least one token in each", file.display()));
    }
    config.check_tokens("prompt", prompts.iter().map(|prompt| &prompt[..]))?;
    Ok(prompts)
}

/// Samples `new` tokens after each prompt, computes the gradient of a loss on them as an update does, and compares the
/// log-probs of both.
fn difference(model: Model, prompts: Vec<Vec<u32>>, options: &LogprobDiffOptions) -> Result<Difference> {
    let count = prompts.len();
    let completions = complete(&model, &prompts, &vec![options.new; count])?.completions;
    let sequences = prompts.into_iter().zip(&completions).map(|(prompt, c)| {
        let length = prompt.len();
        ([prompt, c.tokens.clone()].concat(), length)
    });
    let mut batch = random_batch(sequences);
    batch.rows.logprobs = completions.iter().flat_map(|completion| &completion.logprobs).copied().collect();
    let section = json!({ "mini_batch": count, "lr": 1e-6, "recompute": options.recompute });
    let update: Update = serde_json::from_value(section)?;
    let settings = UpdateSettings {
        update: &update,
        loss: None,
        lr: 0.0,
        temperature: 1.0,
        max_response_tokens: options.new,
        seed: 0,
    };
    let all: Vec<usize> = (0..count).collect();
    let mut policy = Network::new(model, update_rule(&update.optimizer), &Ranks::solo(options.device))?;
    Ok(gradients(&mut policy, &batch, &all, &settings)?.logprob_diff)
}
