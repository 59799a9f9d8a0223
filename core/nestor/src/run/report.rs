//! Metrics of an iteration's episodes, rows and update.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use nestor_torch::cuda::{self, DeviceMemory};
use nestor_torch::fused::free_bytes;
use tch::Device;

use super::UpdateReports;
use super::ledger::Totals;
use crate::agent::{PlayTime, Success};
use crate::data::{Episode, Rows};
use crate::engine::Spent;
use crate::eval::{Evaluation, environment_means, returns_by_environment};
use crate::policy::critic::{explained_variance, token_values};
use crate::policy::update::UpdateReport;
use crate::process_memory::{peak_bytes, rss_bytes};
use crate::tokenizer::Ends;
use crate::track::{Histogram, Metrics};

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0usize), |(sum, n), v| (sum + v, n + 1));
    sum / n.max(1) as f64
}

pub fn evaluation(metrics: &mut Metrics, evaluation: &Evaluation) {
    let [low, high] = evaluation.success.interval;
    metrics.set("eval/success", evaluation.success.rate());
    metrics.set("eval/success_low", low);
    metrics.set("eval/success_high", high);
    for (k, share) in evaluation.success.pass_at.iter().skip(1) {
        metrics.set(format!("eval/pass_at_{k}"), *share);
    }
    for (kind, rate) in &evaluation.by_type {
        metrics.set(format!("eval/success/{kind}"), rate.rate());
    }
    // Episodes that all failed say nothing of the policy.
    if evaluation.finished > 0 {
        metrics.set("eval/return", evaluation.mean_return);
        for (environment, value) in &evaluation.return_of {
            metrics.set(format!("eval/return/{environment}"), *value);
        }
        metrics.set("eval/length", evaluation.mean_length);
        metrics.set("eval/valid_action_ratio", evaluation.valid_actions);
        metrics.set("eval/repeated_ratio", evaluation.repeated_actions);
        metrics.set("eval/clipped_ratio", evaluation.cut_responses);
        metrics.set("eval/response_length", evaluation.mean_response);
    }
    for (name, value) in &evaluation.environment {
        metrics.set(format!("eval/env/{name}"), *value);
    }
}

/// Metrics of the episodes that did not fail; none where all did.
pub fn episodes(metrics: &mut Metrics, episodes: &[Episode], ends: &Ends) {
    let (success, returns) = (Success::of(episodes), returns_by_environment(episodes));
    let episodes: Vec<&Episode> = episodes.iter().filter(|episode| !episode.failed()).collect();
    if episodes.is_empty() {
        return;
    }
    metrics.set("episode/success", success.all.rate());
    for (kind, count) in &success.by_type {
        metrics.set(format!("episode/success/{kind}"), count.rate());
    }
    metrics.set("episode/return", mean(episodes.iter().map(|e| e.episode_return())));
    for (environment, value) in returns {
        metrics.set(format!("episode/return/{environment}"), value);
    }
    metrics.set("episode/length", mean(episodes.iter().map(|e| e.steps.len() as f64)));
    let truncated = episodes.iter().map(|e| f64::from(u8::from(e.steps.last().is_some_and(|s| s.truncated))));
    metrics.set("episode/truncated", mean(truncated));
    let steps = || episodes.iter().flat_map(|e| &e.steps);
    metrics.set("episode/valid_action_ratio", mean(steps().map(|s| f64::from(u8::from(s.valid)))));
    let repeated = episodes.iter().map(|episode| episode.repeated_steps()).sum::<usize>();
    metrics.set("episode/repeated_ratio", repeated as f64 / steps().count().max(1) as f64);
    metrics.set("prompt/length", mean(steps().map(|s| s.prompt.len() as f64)));
    metrics.set("prompt/length_max", steps().map(|s| s.prompt.len()).max().unwrap_or(0) as f64);
    metrics.set("response/length", mean(steps().map(|s| s.response.len() as f64)));
    let clipped = steps().map(|s| f64::from(u8::from(ends.end(&s.response).is_none())));
    metrics.set("response/clipped_ratio", mean(clipped));
}

/// The parts of the rollout's time.
pub fn play_time(metrics: &mut Metrics, time: PlayTime) {
    let PlayTime { engine: Spent { generate, prefill }, env_wait } = time;
    for (name, part) in [("generate", generate), ("prefill", prefill), ("env_wait", env_wait)] {
        metrics.set(format!("time/{name}_s"), part.as_secs_f64());
    }
}

/// The episodes that an environment failed in.
pub fn failed(metrics: &mut Metrics, episodes: &[Episode]) {
    metrics.set("episode/failed", episodes.iter().filter(|episode| episode.failed()).count() as f64);
}

/// The environment's own numbers: the mean over the episodes that have one of the name.
pub fn environment(metrics: &mut Metrics, episodes: &[Episode]) -> Result<()> {
    let mut set = |(name, value): (String, f64)| metrics.set_of_plugin("env", &name, value);
    environment_means(episodes).into_iter().try_for_each(&mut set).context("recipe key `env.plugin`")
}

/// The estimator's own numbers.
pub fn estimator(metrics: &mut Metrics, own: BTreeMap<String, f64>) -> Result<()> {
    let mut set = |(name, value): (String, f64)| metrics.set_of_plugin("estimator", &name, value);
    own.into_iter().try_for_each(&mut set).context("recipe key `estimator.plugin`")
}

/// Metrics of the advantages, and of the groups of steps taken in the same state.
pub fn rows(metrics: &mut Metrics, rows: &Rows) {
    if rows.is_empty() {
        return;
    }
    let advantages = || rows.advantages.iter().map(|&a| f64::from(a));
    let center = mean(advantages());
    metrics.set("advantage/mean", center);
    metrics.set("advantage/std", mean(advantages().map(|a| (a - center).powi(2))).sqrt());
    metrics.set("advantage/max", advantages().fold(0.0, |max, a| a.abs().max(max)));
    let zero = rows.token_offsets.windows(2).map(|w| {
        let tokens = &rows.advantages[w[0] as usize..w[1] as usize];
        f64::from(u8::from(tokens.iter().all(|&a| a == 0.0)))
    });
    metrics.set("advantage/zero_ratio", mean(zero));
    let mut sizes: HashMap<(u32, &[u8]), usize> = HashMap::new();
    for (&group, anchor) in rows.group.iter().zip(&rows.anchor) {
        *sizes.entry((group, anchor)).or_default() += 1;
    }
    let largest = sizes.values().max().copied().unwrap_or(0);
    metrics.set("anchor/groups", sizes.len() as f64);
    metrics.set("anchor/size_mean", rows.len() as f64 / sizes.len().max(1) as f64);
    metrics.set("anchor/size_max", largest as f64);
    let singletons = sizes.values().filter(|&&n| n == 1).count();
    metrics.set("anchor/singleton_ratio", singletons as f64 / rows.len().max(1) as f64);
}

/// The line that compares the first and the last evaluation of the same tasks, which `comparable_from` begins.
pub fn success(evaluations: &[(u64, f64)], comparable_from: u64) -> Option<String> {
    let first = evaluations.iter().position(|(iteration, _)| *iteration >= comparable_from)?;
    match (&evaluations[first..], comparable_from) {
        ([(_, before), .., (_, after)], 0) => Some(format!(
            "success on the evaluation tasks: {before:.3} before reinforcement learning, {after:.3} after it"
        )),
        ([(iteration, before), .., (_, after)], _) => Some(format!(
            "success on the evaluation tasks, which changed on resume: {before:.3} after iteration {iteration}, {after:.3} at \
             the end"
        )),
        _ => None,
    }
}

/// The work of all iterations so far.
pub fn totals(metrics: &mut Metrics, totals: Totals) {
    metrics.set("episode/total", totals.episodes as f64);
    metrics.set("tokens/total", totals.tokens as f64);
}

/// The histograms of an iteration: advantages of response tokens, returns and lengths of episodes.
pub fn histograms(episodes: &[Episode], rows: &Rows) -> Vec<(&'static str, Histogram)> {
    let finished = || episodes.iter().filter(|episode| !episode.failed());
    let all = [
        ("advantage", Histogram::of(rows.advantages.iter().map(|&a| f64::from(a)))),
        ("return", Histogram::of(finished().map(Episode::episode_return))),
        ("length", Histogram::of(finished().map(|e| e.steps.len() as f64))),
    ];
    all.into_iter().filter_map(|(name, counts)| Some((name, counts?))).collect()
}

/// Losses and gradients.
pub fn update(metrics: &mut Metrics, update: &UpdateReports, rows: &Rows) {
    if let Some(report) = &update.policy {
        policy(metrics, report);
    }
    if let Some(report) = &update.critic {
        metrics.set("loss/value", report.mean(|step| step.loss));
        metrics.set("value/clip_fraction", report.mean(|step| step.clip_fraction));
        metrics.set("value/explained_variance", explained_variance(rows));
        metrics.set("value/mean", mean(token_values(rows).map(f64::from)));
        metrics.set("value/return_mean", mean(rows.returns.iter().map(|&r| f64::from(r))));
        metrics.set("value/grad_norm", report.grad_norm());
        metrics.set("value/grad_skipped", report.skipped() as f64);
    }
}

/// The rows of `steps.jsonl`: losses and gradient of each optimizer step of the policy.
pub fn steps(report: &UpdateReport) -> impl Iterator<Item = Metrics> {
    report.each.iter().map(|step| {
        let mut metrics = Metrics::new();
        step.losses
            .iter()
            .filter(|(name, _)| name.starts_with("loss/"))
            .for_each(|(name, loss)| metrics.set(name, loss));
        metrics.set("grad/norm", step.grad_norm);
        metrics.set("grad/skipped", f64::from(u8::from(step.skipped)));
        if let Some(scale) = step.loss_scale {
            metrics.set("grad/loss_scale", scale);
        }
        metrics
    })
}

/// Memory of this process and its device, where the system reports it.
pub fn memory(metrics: &mut Metrics, device: Device) {
    let measured = [
        ("memory/rss_bytes", rss_bytes()),
        ("memory/peak_rss_bytes", peak_bytes()),
        ("memory/free_bytes", free_bytes(device).map(|bytes| bytes as f64)),
    ];
    for (name, bytes) in measured {
        if let Some(bytes) = bytes {
            metrics.set(name, bytes);
        }
    }
    if let Device::Cuda(gpu) = device
        && let Ok(counts) = cuda::memory(gpu)
    {
        device_memory(metrics, &counts);
        // Every row has peaks of its own. A device that counts also resets.
        let _ = cuda::reset_peak(gpu);
    }
}

/// Memory of a GPU since the previous row.
fn device_memory(metrics: &mut Metrics, counts: &DeviceMemory) {
    metrics.set("memory/device_peak_bytes", counts.peak_allocated as f64);
    metrics.set("memory/device_peak_reserved_bytes", counts.peak_reserved as f64);
    metrics.set("memory/device_retries", counts.retries as f64);
}

fn policy(metrics: &mut Metrics, report: &UpdateReport) {
    report.losses().iter().for_each(|(name, value)| metrics.set(name, value));
    metrics.set("grad/norm", report.grad_norm());
    metrics.set("grad/skipped", report.skipped() as f64);
    if let Some(scale) = report.each.last().and_then(|step| step.loss_scale) {
        metrics.set("grad/loss_scale", scale);
    }
    metrics.set("rollout/logprob_diff_mean", report.logprob_diff.mean);
    metrics.set("rollout/logprob_diff_max", report.logprob_diff.max);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Step;

    #[test]
    fn a_plugins_numbers_are_means_over_episodes_under_names_of_their_own() -> Result<()> {
        let episode = |metrics: &[(&str, f64)]| Episode {
            metrics: metrics.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
            ..Episode::default()
        };
        let mut metrics = Metrics::new();
        environment(
            &mut metrics,
            &[episode(&[("keys", 1.0), ("doors", 5.0)]), episode(&[("keys", 4.0)]), episode(&[])],
        )?;
        assert_eq!([metrics.get("env/keys"), metrics.get("env/doors")], [Some(2.5), Some(5.0)]);
        let error = environment(&mut metrics, &[episode(&[("errors", 1.0)])]).expect_err("a name of Nestor's own");
        assert!(format!("{error:#}").contains("env/errors"), "{error:#}");
        estimator(&mut metrics, BTreeMap::from([("errors".to_string(), 2.0)]))?;
        assert_eq!(metrics.get("estimator/errors"), Some(2.0));
        Ok(())
    }

    #[test]
    fn a_repeated_action_is_one_taken_before_in_the_same_state() {
        let episode = |steps: &[(&str, &str)]| Episode {
            steps: steps
                .iter()
                .map(|(anchor, action)| Step {
                    anchor: anchor.as_bytes().to_vec(),
                    action: action.to_string(),
                    ..Step::default()
                })
                .collect(),
            ..Episode::default()
        };
        let circle = [("a", "go north"), ("b", "go south"), ("a", "go north"), ("b", "look"), ("b", "look")];
        let played = [episode(&circle), episode(&[("a", "go north"), ("b", "go north"), ("a", "look")])];
        let mut metrics = Metrics::new();
        episodes(&mut metrics, &played, &vec![7].into());
        evaluation(&mut metrics, &Evaluation::of(&played, &vec![7].into()));
        for name in ["episode/repeated_ratio", "eval/repeated_ratio"] {
            assert_eq!(metrics.get(name), Some(2.0 / 8.0), "{name}");
        }
    }

    #[test]
    fn a_gpus_counts_become_metrics_of_the_row() {
        let counts = DeviceMemory {
            peak_allocated: 50,
            peak_reserved: 60,
            allocated: 10,
            reserved: 40,
            outside: 2,
            retries: 3,
            ooms: 0,
        };
        let mut metrics = Metrics::new();
        device_memory(&mut metrics, &counts);
        let expected = [
            ("memory/device_peak_bytes", 50.0),
            ("memory/device_peak_reserved_bytes", 60.0),
            ("memory/device_retries", 3.0),
        ];
        assert_eq!(metrics.iter().collect::<Vec<_>>(), expected);
        // The plan also counts what CUDA and NCCL hold outside the allocator.
        assert_eq!(counts.peak(), 62);
    }
}
