//! `nestor bench iteration`: whole training iterations on a script, timed by phase: the work of `train` between two
//! evaluations, with the scripted environment in place of a plugin.

use std::time::Instant;

use anyhow::{Context, Result};
use nestor_args::IterationArgs;
use serde_json::{Value, json};
use tch::Device;

use super::peak_memory;
use super::rollout::{Stage, describe};
use super::script::Script;
use super::timing::{median, seconds_of};
use super::workload::Workload;
use crate::agent::pack;
use crate::engine::Sampling;
use crate::input_error;
use crate::model::{Config, Model, device, hub, kind, new, weights};
use crate::plugin::Plugins;
use crate::policy::Network;
use crate::policy::batching::ScoringPasses;
use crate::policy::logprobs::ragged_logprobs;
use crate::policy::update::{UpdateSettings, update as update_policy};
use crate::recipe::{Rollout, Update};
use crate::shard::{Ranks, update_rule};

/// Seconds of the phases of one iteration, in order.
#[derive(Debug)]
struct Clock {
    device: Device,
    phases: Vec<(&'static str, f64)>,
}

impl Clock {
    fn time<T>(&mut self, phase: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        let result = work()?;
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
        self.phases.push((phase, begin.elapsed().as_secs_f64()));
        Ok(result)
    }

    fn total(&self) -> f64 {
        self.phases.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Measures rollout, pack, reference (if there is one), advantage and update. `tokens_per_s` counts all tokens of the
/// sequences trained on. Prints one line per iteration to stderr.
pub fn iteration(args: &IterationArgs) -> Result<Value> {
    args.run.check()?;
    let IterationArgs { micro_batch_tokens, recompute, .. } = *args;
    let workload = Workload::load(&args.script.workload)?;
    let (mini_batch, kl) = (args.mini_batch.or(workload.mini_batch), args.kl.unwrap_or(workload.kl));
    if mini_batch == Some(0) || micro_batch_tokens == 0 {
        return Err(input_error!("--mini-batch and --micro-batch-tokens must be at least 1"));
    }
    if !(kl.is_finite() && kl >= 0.0) {
        return Err(input_error!("--kl must be a number from 0 (none), not {kl}"));
    }
    let (config, model) = open_model(args, &workload)?;
    let script = Script::open(&workload, &args.script, &config)?;
    let turns = script.turns().count();
    let longest_response = script.turns().map(|turn| turn.response).max().unwrap_or(1);
    let mut section = json!({
        "mini_batch": mini_batch.unwrap_or(turns).min(turns), "micro_batch_tokens": micro_batch_tokens, "lr": 1e-6,
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
    let estimator = Plugins::discover()?.estimator(&workload.estimator)?;

    let model = model()?;
    let reference = (kl > 0.0).then(|| model.frozen());
    let device = model.device();
    let ranks = Ranks::solo(device);
    let mut policy = Network::new(model, update_rule(&Default::default()), &ranks)?;
    let mut stage = Stage::new(&script, args.run.slots, Sampling::default());
    let mut iterations: Vec<Clock> = Vec::new();
    let mut seen = None;
    for number in 0..args.run.warm_up + args.run.repeats {
        let mut clock = Clock { device: policy.model.device(), phases: Vec::new() };
        let played = clock.time("rollout", || stage.play(&policy.model, number as u64))?;
        let mut batch = clock.time("pack", || Ok(pack(&played.episodes, &rollout)))?;
        if let Some(reference) = &reference {
            batch.rows.ref_logprobs = clock.time("reference", || {
                let passes = ScoringPasses::new(policy.micro_batching(micro_batch_tokens), &batch);
                ragged_logprobs(&policy.ranks, reference, &batch, &passes, 1.0).map(Some)
            })?;
        }
        clock.time("advantage", || estimator.score(&mut batch.rows))?;
        let settings = UpdateSettings {
            update: &update,
            loss: None,
            lr: update.lr,
            temperature: 1.0,
            max_response_tokens: longest_response,
            seed: number as u64,
        };
        let report = clock.time("update", || update_policy(&mut policy, &batch, &settings))?;
        let phases: Vec<String> = clock.phases.iter().map(|(phase, s)| format!("{phase} {s:.2} s")).collect();
        let counted = if number < args.run.warm_up { " (warm-up)" } else { "" };
        eprintln!("iteration {}: {}, total {:.2} s{counted}", number + 1, phases.join(", "), clock.total());
        if number >= args.run.warm_up {
            iterations.push(clock);
        }
        seen = Some((report, stage.engine.take_counters()));
    }
    let (report, counters) = seen.context("no iteration ran")?;
    let totals: Vec<f64> = iterations.iter().map(Clock::total).collect();
    let phases = iterations[0].phases.iter().enumerate().map(|(number, (phase, _))| {
        (phase.to_string(), median(iterations.iter().map(|clock| clock.phases[number].1).collect()).into())
    });
    let mut printed = describe(&script, &args.run)?;
    printed["work"] = "iteration".into();
    printed["tokens"] = report.tokens.into();
    printed["tree_factor"] = (report.tokens as f64 / report.distinct_tokens.max(1) as f64).into();
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
    let (peak_of, peak) = peak_memory(device)?;
    printed["peak_of"] = peak_of.into();
    printed["peak_bytes"] = peak.into();
    Ok(printed)
}

/// Returns the model's configuration and a function that makes the model, so that the script is checked before anything
/// large is allocated.
fn open_model(args: &IterationArgs, workload: &Workload) -> Result<(Config, impl FnOnce() -> Result<Model> + use<>)> {
    let (kind, device) = (kind(args.run.compute.dtype), device(args.run.compute.device)?);
    let dir = args.model.as_deref().map(hub::folder).transpose()?;
    let config = match (&dir, &workload.shape) {
        (Some(dir), _) => Config::load(dir)?,
        (None, Some(shape)) => Config::shape(shape)?,
        (None, None) => return Err(input_error!("--workload {} names no shape; give a --model", args.script.workload)),
    };
    let shape = config.clone();
    Ok((config, move || match dir {
        Some(dir) => weights::load(&dir, kind, device),
        None => new::random(&shape, 0, kind, device),
    }))
}
