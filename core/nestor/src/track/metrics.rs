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
    /// How it is computed; empty where the meaning says it.
    pub formula: &'static str,
}

macro_rules! table {
    ($($name:literal, $unit:literal, $meaning:literal, $formula:literal;)*) => {
        &[$(Metric { name: $name, unit: $unit, meaning: $meaning, formula: $formula }),*]
    };
}

/// All metrics a run writes. In formulas a mean without a word more is over what the meaning names; `A` are advantages, `R`
/// returns, `V` values, `l` log-probs per response token (`l_old` those that the update starts from, `l_ref` the
/// reference's), `r = exp(l - l_old)`.
pub const METRICS: &[Metric] = table! {
    "eval/success", "share", "won episodes on the fixed evaluation tasks; in row 0 before reinforcement learning", "won / episodes";
    "eval/success/<task_type>", "share", "the same for one kind of task", "won / episodes of the kind";
    "eval/return", "reward", "undiscounted return of evaluation episodes", "mean of sum_t reward_t";
    "eval/length", "steps", "length of evaluation episodes", "mean of steps";
    "episode/success", "share", "won episodes among those trained on (without those that dynamic sampling dropped)", "won / episodes";
    "episode/success/<task_type>", "share", "the same for one kind of task", "won / episodes of the kind";
    "episode/return", "reward", "undiscounted return of training episodes, before penalties", "mean of sum_t reward_t";
    "episode/length", "steps", "length of training episodes", "mean of steps";
    "episode/truncated", "share", "training episodes cut by a limit", "cut / episodes";
    "episode/valid_action_ratio", "share", "steps whose response the environment could read", "valid / steps";
    "env/errors", "count", "failures of the environment that were survived (`rollout.env_errors`), evaluation included", "sum over ranks";
    "prompt/length", "tokens", "length of prompts; in a transcript of what each step adds", "mean over steps";
    "prompt/length_max", "tokens", "the longest prompt; in a transcript the most that a step adds", "max over steps";
    "response/length", "tokens", "length of responses", "mean over steps";
    "response/clipped_ratio", "share", "responses that reached the token limit", "without an end token / steps";
    "rollout/rounds", "count", "rounds that dynamic sampling played in the iteration", "";
    "rollout/groups_played", "count", "groups played, those that dynamic sampling dropped included", "";
    "rollout/groups_dropped", "count", "groups that dynamic sampling dropped: their episodes had equal returns", "";
    "rollout/success", "share", "won episodes among all played, dropped groups included; written with dynamic sampling", "won / episodes played";
    "rollout/tokens_per_s", "tokens/s", "generated tokens a second, over all ranks", "response tokens / time/rollout_s";
    "rollout/logprob_diff_mean", "nats", "difference between the engine's log-probs and the update's own before its first step", "mean |l_engine - l|";
    "rollout/logprob_diff_max", "nats", "the largest such difference", "max |l_engine - l|";
    "reward/kl", "nats", "KL estimate against the reference that `kl_in_reward` takes off", "mean over steps of the mean over a step's tokens";
    "reward/kl_coef", "", "its coefficient in this iteration", "";
    "advantage/mean", "", "advantage of response tokens", "mean A";
    "advantage/std", "", "its standard deviation", "sqrt(mean (A - mean A)^2)";
    "advantage/max", "", "the largest advantage, whatever its sign", "max |A|";
    "advantage/zero_ratio", "share", "steps that teach nothing", "steps with A = 0 on all tokens / steps";
    "anchor/groups", "count", "groups of steps taken in the same state, over all groups of episodes", "distinct (group, anchor)";
    "anchor/singleton_ratio", "share", "steps that are alone in their state's group, so that they get no step-level advantage", "steps in groups of one / steps";
    "anchor/size_mean", "steps", "size of these groups", "steps / anchor/groups";
    "anchor/size_max", "steps", "the largest of these groups", "";
    "loss/total", "", "what is differentiated", "loss/policy + kl coef loss/kl - entropy coef policy/entropy";
    "loss/policy", "", "policy loss as `update.aggregation` sums it", "ppo: -min(r A, clip(r) A)";
    "loss/kl", "nats", "KL estimate against the reference, before its weight", "by `update.kl.kind`; k3: exp(l_ref - l) - (l_ref - l) - 1";
    "policy/entropy", "nats", "entropy of the policy", "mean over response tokens of -sum_v p_v log p_v";
    "policy/clip_fraction", "share", "tokens where the clip is active, or an importance weight truncated", "active / tokens";
    "policy/dual_clip_fraction", "share", "tokens bound by the dual clip", "bound / tokens";
    "policy/approx_kl", "nats", "how far the policy moved in the update", "mean (l_old - l)";
    "grad/norm", "", "global gradient norm before clipping", "mean over optimiser steps of sqrt(sum g^2)";
    "grad/skipped", "count", "optimiser steps skipped because a gradient was not finite", "";
    "loss/value", "", "value loss of the critic", "max((V - R)^2, (clip(V) - R)^2), as aggregated";
    "value/clip_fraction", "share", "values where the clip is active", "active / tokens";
    "value/explained_variance", "share", "how much of the returns' variance the critic's values explain before its update", "1 - Var(R - V) / Var(R)";
    "value/mean", "reward", "value of the states before response tokens", "mean V";
    "value/return_mean", "reward", "target of these values", "mean R";
    "value/grad_norm", "", "global gradient norm of the critic before clipping", "mean over optimiser steps of sqrt(sum g^2)";
    "value/grad_skipped", "count", "optimiser steps of the critic skipped because a gradient was not finite", "";
    "lr", "", "learning rate", "";
    "update/tokens_per_s", "tokens/s", "trained tokens a second, prompts included, over all ranks", "tokens of sequences / time/update_s";
    "update/mfu", "share", "model FLOPs utilization of the update (arXiv 2204.02311): FLOPs without recomputation over what the ranks' devices could do", "3 forward FLOPs / (time/update_s ranks peak)";
    "perf/mfu", "share", "the same of the whole iteration", "(generation + log-probs + 3 forward of trained tokens) / (time/iteration_s ranks peak)";
    "perf/peak_flops", "FLOP/s", "what one rank's device reaches in a large matrix product of the run's type, measured when the run starts", "2 n^3 / s, the best of several";
    "warm_start/loss", "nats", "negative log-prob of the expert's tokens in the last warm-start step", "mean -l";
    "time/<phase>_s", "s", "seconds of one phase; the phases of a row add up to time/iteration_s", "wall time at rank 0";
    "time/iteration_s", "s", "seconds since the row before", "wall time at rank 0";
    "memory/rss_bytes", "bytes", "memory of rank 0's process", "VmRSS";
    "memory/peak_rss_bytes", "bytes", "the most it ever had", "VmHWM";
    "memory/free_bytes", "bytes", "what rank 0 could still take of its device's memory", "a GPU's free memory and libtorch's reserve; MemAvailable";
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
    let mut table = String::from("| metric | unit | meaning | formula |\n|---|---|---|---|\n");
    for Metric { name, unit, meaning, formula } in METRICS {
        let [meaning, formula] = [meaning, formula].map(|text| text.replace('|', "\\|"));
        writeln!(table, "| `{name}` | {unit} | {meaning} | {formula} |").expect("a string takes what is written");
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
