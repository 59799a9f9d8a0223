//! The one table of metric names, and the values of one iteration.

use serde::{Deserialize, Serialize};

use std::fmt::Write;

/// A metric: what its name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name; `<…>` stands for any word.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

macro_rules! table {
    ($($name:literal, $unit:literal, $meaning:literal;)*) => {
        &[$(Metric { name: $name, unit: $unit, meaning: $meaning }),*]
    };
}

/// All metrics a run may write.
pub const METRICS: &[Metric] = table! {
    "eval/success", "share", "won episodes on the fixed evaluation tasks; in row 0 before reinforcement learning";
    "eval/success/<task_type>", "share", "the same for one kind of task";
    "eval/return", "reward", "mean undiscounted return of evaluation episodes";
    "eval/length", "steps", "mean length of evaluation episodes";
    "episode/success", "share", "won episodes among those trained on (without those that dynamic sampling dropped)";
    "episode/success/<task_type>", "share", "the same for one kind of task";
    "episode/return", "reward", "mean undiscounted return of training episodes, before penalties";
    "episode/length", "steps", "mean length of training episodes";
    "episode/truncated", "share", "training episodes cut by a limit";
    "episode/valid_action_ratio", "share", "steps whose response the environment could read";
    "prompt/length", "tokens", "mean length of prompts; in a transcript of what each step adds";
    "prompt/length_max", "tokens", "the longest prompt; in a transcript the most that a step adds";
    "response/length", "tokens", "mean length of responses";
    "response/clipped_ratio", "share", "responses that reached the token limit";
    "rollout/rounds", "count", "rounds that dynamic sampling played in the iteration";
    "rollout/groups_played", "count", "groups played, those that dynamic sampling dropped included";
    "rollout/groups_dropped", "count", "groups that dynamic sampling dropped: their episodes had equal returns";
    "rollout/success", "share", "won episodes among all played, dropped groups included; written with dynamic sampling";
    "rollout/tokens_per_s", "tokens/s", "response tokens over the seconds of the rollout";
    "rollout/logprob_diff_mean", "nats", "mean |difference| between the engine's log-probs and the update's";
    "rollout/logprob_diff_max", "nats", "the largest such difference";
    "reward/kl", "nats", "KL estimate against the reference that `kl_in_reward` takes off: mean over steps of the mean over a step's tokens";
    "reward/kl_coef", "", "its coefficient in this iteration";
    "advantage/mean", "", "mean advantage over response tokens";
    "advantage/std", "", "its standard deviation";
    "advantage/max", "", "the largest |advantage|";
    "advantage/zero_ratio", "share", "rows whose advantage is zero: they teach nothing";
    "anchor/groups", "count", "groups of steps taken in the same state, over all groups of episodes";
    "anchor/singleton_ratio", "share", "steps that are alone in their state's group";
    "loss/total", "", "what is differentiated: policy loss, KL and entropy with their weights";
    "loss/policy", "", "policy loss as aggregated";
    "loss/kl", "nats", "KL estimate against the reference, before its weight";
    "policy/entropy", "nats", "mean entropy of the policy over response tokens";
    "policy/clip_fraction", "share", "tokens where the clip is active, or an importance weight truncated";
    "policy/dual_clip_fraction", "share", "tokens bound by the dual clip";
    "policy/approx_kl", "nats", "mean of old minus new log-probs";
    "grad/norm", "", "mean global gradient norm before clipping";
    "grad/skipped", "count", "optimiser steps skipped because a gradient was not finite";
    "loss/value", "", "clipped value loss of the critic as aggregated";
    "value/clip_fraction", "share", "values where the clip is active";
    "value/explained_variance", "share", "how much of the returns' variance the critic's values explain before its update: 1 - Var(return - value) / Var(return)";
    "value/mean", "reward", "mean value of the states before response tokens";
    "value/return_mean", "reward", "mean target of these values";
    "value/grad_norm", "", "mean global gradient norm of the critic before clipping";
    "value/grad_skipped", "count", "optimiser steps of the critic skipped because a gradient was not finite";
    "lr", "", "learning rate";
    "update/tokens_per_s", "tokens/s", "tokens of sequences over the seconds of the update";
    "warm_start/loss", "nats", "mean negative log-prob of the expert's tokens in the last warm-start step";
    "time/<phase>_s", "s", "seconds of one phase";
    "time/iteration_s", "s", "seconds of the whole iteration";
    "memory/rss_bytes", "bytes", "memory of the process";
};

/// The table entry of a name; none for a name that is not in the table.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| match metric.name.split_once('<') {
        None => metric.name == name,
        Some((head, tail)) => {
            let tail = tail.split_once('>').map_or("", |(_, tail)| tail);
            name.len() > head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
        }
    })
}

/// The table in Markdown.
pub fn markdown() -> String {
    let mut table = String::from("| metric | unit | meaning |\n|---|---|---|\n");
    for Metric { name, unit, meaning } in METRICS {
        writeln!(table, "| `{name}` | {unit} | {} |", meaning.replace('|', "\\|"))
            .expect("a string takes what is written");
    }
    table
}

/// The values of one iteration in the order set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// No values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a value; a second value of one name replaces the first. A name that is not in the table is a bug.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        assert!(find(&name).is_some(), "metric `{name}` is not in the table of core/src/track/metrics.rs");
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, slot)) => *slot = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Names and values in the order set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// One line of `metrics.jsonl`; a value that is not finite is null there.
    pub fn to_json(&self, iteration: u64) -> String {
        let mut row = serde_json::Map::new();
        row.insert("iteration".into(), iteration.into());
        row.extend(self.iter().map(|(name, value)| (name.to_string(), value.into())));
        serde_json::Value::Object(row).to_string()
    }
}
