//! `nestor bench iteration`: whole iterations of training on a script, by phase: what `train` does between two
//! evaluations, with the scripted environment in place of a plugin.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tch::Device;

use super::rollout::{Stage, describe};
use super::script::{Script, ScriptArgs, Workload};
use super::{RunArgs, median, seconds_of};
use crate::agent::pack;
use crate::engine::Sampling;
use crate::input_error;
use crate::model::{Config, Model, device, kind, new, weights};
use crate::plugin::Plugins;
use crate::policy::Network;
use crate::policy::logprobs::ragged_logprobs;
use crate::policy::update::{UpdateSettings, update as update_policy};
use crate::recipe::{PluginChoice, Recompute, Rollout, Update};
use crate::shard::Ranks;

/// What `nestor bench iteration` measures.
#[derive(Debug, Clone, clap::Args)]
pub struct IterationArgs {
    /// The work
    #[arg(long, value_enum)]
    pub workload: Workload,
    /// A model in Hugging Face form; alfworld-1.5b makes one in Qwen2.5-1.5B's shape, with random weights, if it is left out
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The script.
    #[command(flatten)]
    pub script: ScriptArgs,
    /// How it is played.
    #[command(flatten)]
    pub run: RunArgs,
    /// Steps per optimiser step; by default 256 for alfworld-1.5b, and all for multi-turn
    #[arg(long, value_name = "N")]
    pub mini_batch: Option<usize>,
    /// Tokens per forward and backward pass
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub micro_batch_tokens: usize,
    /// Blocks that the update computes again in its backward pass: all, none, or the first N
    #[arg(long, value_name = "WHICH", default_value = "none")]
    pub recompute: Recompute,
    /// Weight of the KL loss against a frozen reference; 0 leaves the reference out. By default 0.01 for alfworld-1.5b, as
    /// published, and 0 for multi-turn
    #[arg(long, value_name = "COEF")]
    pub kl: Option<f64>,
}

/// Seconds of the parts of one iteration, in order.
#[derive(Debug)]
struct Clock {
    device: Device,
    parts: Vec<(&'static str, f64)>,
}

impl Clock {
    /// Runs one part.
    fn time<T>(&mut self, part: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        let result = work()?;
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
        self.parts.push((part, begin.elapsed().as_secs_f64()));
        Ok(result)
    }

    fn total(&self) -> f64 {
        self.parts.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Rollout, pack, reference (where there is one), advantage and update; `tokens_per_s` counts all tokens of the sequences
/// trained on. One line per iteration goes to stderr.
pub fn iteration(args: &IterationArgs) -> Result<Value> {
    args.run.check()?;
    let IterationArgs { workload, mini_batch, micro_batch_tokens, recompute, .. } = *args;
    let kl = args.kl.unwrap_or(if workload == Workload::Alfworld { 0.01 } else { 0.0 });
    if mini_batch == Some(0) || micro_batch_tokens == 0 {
        return Err(input_error!("--mini-batch and --micro-batch-tokens must be at least 1"));
    }
    if !(kl.is_finite() && kl >= 0.0) {
        return Err(input_error!("--kl must be a number from 0 (none), not {kl}"));
    }
    let (config, model) = open_model(args)?;
    let script = Script::open(workload, &args.script, &config)?;
    let turns = script.turns().count();
    let all = if workload == Workload::Alfworld { 256 } else { turns };
    let longest_response = script.turns().map(|turn| turn.response).max().unwrap_or(1);
    let mut section = json!({
        "mini_batch": mini_batch.unwrap_or(all).min(turns), "micro_batch_tokens": micro_batch_tokens, "lr": 1e-6,
        "recompute": recompute, "entropy": 0.0,
    });
    if kl > 0.0 {
        section["kl"] = json!({ "coef": kl });
    }
    let update: Update = serde_json::from_value(section)?;
    let rollout: Rollout = serde_json::from_value(json!({
        "tasks": script.episodes.len() / script.group_size, "group_size": script.group_size, "max_steps": turns,
        "max_prompt_tokens": script.longest(), "max_response_tokens": longest_response,
        "history": { "mode": script.history },
    }))?;
    let gigpo = PluginChoice { plugin: "gigpo".into(), config: json!({}) };
    let estimator = Plugins::discover()?.estimator(&gigpo)?;

    let model = model()?;
    let reference = (kl > 0.0).then(|| model.copy(model.kind()));
    let ranks = Ranks::solo(model.device());
    let mut policy = Network::new(model, &ranks)?;
    let mut stage = Stage::new(&script, args.run.slots, Sampling::default());
    let mut iterations: Vec<Clock> = Vec::new();
    let mut seen = None;
    for number in 0..args.run.warm_up + args.run.repeats {
        let mut clock = Clock { device: policy.model.device(), parts: Vec::new() };
        let played = clock.time("rollout", || stage.play(&policy.model, number as u64))?;
        let mut batch = clock.time("pack", || Ok(pack(&played.episodes, &rollout)))?;
        if let Some(reference) = &reference {
            batch.rows.ref_logprobs = clock.time("reference", || {
                ragged_logprobs(&policy.ranks, reference, &batch, micro_batch_tokens, 1.0).map(Some)
            })?;
        }
        clock.time("advantage", || estimator.score(&mut batch.rows))?;
        let settings = UpdateSettings {
            update: &update,
            lr: update.lr,
            temperature: 1.0,
            max_response_tokens: longest_response,
            seed: number as u64,
        };
        let report = clock.time("update", || update_policy(&mut policy, &batch, &settings))?;
        let parts: Vec<String> = clock.parts.iter().map(|(part, seconds)| format!("{part} {seconds:.2} s")).collect();
        let counted = if number < args.run.warm_up { " (does not count)" } else { "" };
        eprintln!("iteration {}: {}, total {:.2} s{counted}", number + 1, parts.join(", "), clock.total());
        if number >= args.run.warm_up {
            iterations.push(clock);
        }
        seen = Some((report, stage.engine.take_counters()));
    }
    let (report, counters) = seen.context("no iteration was made")?;
    let totals: Vec<f64> = iterations.iter().map(Clock::total).collect();
    let phases = iterations[0].parts.iter().enumerate().map(|(number, (part, _))| {
        (part.to_string(), median(iterations.iter().map(|clock| clock.parts[number].1).collect()).into())
    });
    let mut printed = describe(&script, &args.run)?;
    printed["work"] = "iteration".into();
    printed["tokens"] = report.tokens.into();
    printed["generated"] = counters.generated.into();
    printed["prefilled"] = counters.prefilled.into();
    printed["shared"] = counters.shared.into();
    printed["optimizer_steps"] = report.steps().into();
    printed["mini_batch"] = update.mini_batch.into();
    printed["micro_batch_tokens"] = micro_batch_tokens.into();
    printed["recompute"] = serde_json::to_value(recompute)?;
    printed["kl"] = kl.into();
    printed["logprob_diff_mean"] = report.logprob_diff.mean.into();
    printed["logprob_diff_max"] = report.logprob_diff.max.into();
    printed["phases"] = Value::Object(phases.collect());
    printed["seconds_all"] = seconds_of(&totals);
    printed["tokens_per_s"] = (report.tokens as f64 / median(totals.clone())).into();
    printed["seconds"] = median(totals).into();
    Ok(printed)
}

/// The model's configuration, and what makes the model: scripts are checked before anything large is allocated.
fn open_model(args: &IterationArgs) -> Result<(Config, impl FnOnce() -> Result<Model> + use<>)> {
    let (kind, device) = (kind(args.run.compute.dtype), device(args.run.compute.device)?);
    let config = match &args.model {
        Some(dir) => Config::load(dir)?,
        None if args.workload == Workload::Alfworld => Config::shape("1.5b")?,
        None => return Err(input_error!("--workload multi-turn needs a --model")),
    };
    let (shape, dir) = (config.clone(), args.model.clone());
    Ok((config, move || match dir {
        Some(dir) => weights::load(&dir, kind, device),
        None => new::random(&shape, 0, kind, device),
    }))
}
