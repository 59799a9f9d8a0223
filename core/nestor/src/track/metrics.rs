//! The table of metric names, and the values of one iteration.

use std::fmt::Write;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// An entry of the table of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// `<…>` matches any word.
    pub name: &'static str,
    pub unit: &'static str,
    pub meaning: &'static str,
    /// Empty where the meaning suffices.
    pub formula: &'static str,
}

macro_rules! table {
    ($($name:literal, $unit:literal, $meaning:literal, $formula:literal;)*) => {
        &[$(Metric { name: $name, unit: $unit, meaning: $meaning, formula: $formula }),*]
    };
}

/// All metrics that a run writes. In formulas, unqualified means are taken over the items that the meaning names. `A`
/// are advantages, `R` returns, `V` values, `l` log-probs per response token (`l_old` before the update, `l_ref` of the
/// reference), `r = exp(l - l_old)`.
pub const METRICS: &[Metric] = table! {
    "eval/success", "share", "won episodes on the fixed evaluation tasks; row 0 is before reinforcement learning. Over a list of environments it is the mean of their shares", "won / episodes";
    "eval/success_low", "share", "lower end of the 95 % interval of eval/success", "Wilson's interval of the effective number of episodes";
    "eval/success_high", "share", "upper end of this interval", "";
    "eval/pass_at_<k>", "share", "evaluation tasks that at least one of k samples solves, with `eval.samples` of at least 2", "mean over tasks of 1 - C(n - c, k) / C(n, k), where c of n samples won";
    "eval/success/<task_type>", "share", "won episodes among the evaluation tasks of one kind. With a list of environments, of one environment under its name, and of its kinds under `NAME/KIND`", "won / episodes of the kind";
    "eval/failed", "count", "evaluation episodes that the environment failed in; they count as not won, and not in return and length; only with `rollout.env_errors`", "";
    "eval/return", "reward", "undiscounted return of evaluation episodes", "mean of sum_t reward_t";
    "eval/return/<environment>", "reward", "undiscounted return of evaluation episodes of one environment, with a list of them", "mean of sum_t reward_t";
    "eval/length", "steps", "length of evaluation episodes", "mean of steps";
    "eval/valid_action_ratio", "share", "steps of evaluation episodes whose response the environment could parse", "valid / steps";
    "eval/repeated_ratio", "share", "steps of evaluation episodes whose action the episode took before in the same state (anchor)", "repeated / steps";
    "eval/clipped_ratio", "share", "responses of evaluation episodes that reached the token limit", "without an end token / steps";
    "eval/response_length", "tokens", "length of responses of evaluation episodes", "mean over steps";
    "eval/env/<name>", "", "the environment's own number of this name, the last one of each evaluation episode", "mean over the episodes that have it";
    "episode/failed", "count", "training episodes that the environment failed in; they count in no other metric of episodes and in no advantage; only with `rollout.env_errors`", "";
    "episode/success", "share", "won episodes among those trained on, without groups that dynamic sampling dropped", "won / episodes";
    "episode/success/<task_type>", "share", "won episodes of one kind of task among those trained on. With a list of environments, of one environment under its name, and of its kinds under `NAME/KIND`", "won / episodes of the kind";
    "episode/return", "reward", "undiscounted return of training episodes, before penalties", "mean of sum_t reward_t";
    "episode/return/<environment>", "reward", "undiscounted return of training episodes of one environment, with a list of them", "mean of sum_t reward_t";
    "episode/length", "steps", "length of training episodes", "mean of steps";
    "episode/total", "episodes", "episodes played for training so far, including groups that dynamic sampling dropped", "sum over iterations";
    "episode/truncated", "share", "training episodes cut by a limit", "cut / episodes";
    "episode/valid_action_ratio", "share", "steps whose response the environment could parse", "valid / steps";
    "episode/repeated_ratio", "share", "steps whose action the episode took before in the same state (anchor): a policy that walks in circles repeats many", "repeated / steps";
    "env/errors", "count", "failures of the environment that the run survived (`rollout.env_errors`), including evaluation", "sum over ranks";
    "env/<name>", "", "the environment's own number of this name (`NESTOR_METRICS`), the last one of each training episode; with a list of environments the name is `ENVIRONMENT/NAME`", "mean over the episodes that have it";
    "estimator/<name>", "", "the estimator's own number of this name (`NESTOR_METRICS`)", "";
    "prompt/length", "tokens", "length of prompts; in a transcript, of the tokens that a step adds", "mean over steps";
    "prompt/length_max", "tokens", "longest prompt; in a transcript, the most tokens that a step adds", "max over steps";
    "response/length", "tokens", "length of responses", "mean over steps";
    "response/clipped_ratio", "share", "responses that reached the token limit", "without an end token / steps";
    "tokens/total", "tokens", "tokens generated for training so far, over all ranks", "sum over iterations";
    "rollout/rounds", "count", "rounds that dynamic sampling played", "";
    "rollout/groups_played", "count", "groups played, including those that dynamic sampling dropped", "";
    "rollout/groups_dropped", "count", "groups that dynamic sampling dropped because their episodes had equal returns", "";
    "rollout/success", "share", "won episodes among all played, including dropped groups; only with dynamic sampling", "won / episodes played";
    "curriculum/weight", "", "weight of the tasks that the curriculum drew, before the iteration; only with `rollout.curriculum`", "mean of max(floor, 4 p (1 - p)), or 1 for a new task";
    "curriculum/new_ratio", "share", "tasks that the curriculum drew and the run had not played before", "new / drawn";
    "curriculum/tasks_seen", "count", "tasks with a success that the curriculum knows, after the iteration", "";
    "rollout/tokens_per_s", "tokens/s", "generated tokens per second, over all ranks", "response tokens / time/rollout_s";
    "rollout/prompt_cached", "share", "prompt tokens that the engine found in its cache instead of computing them, over all ranks", "tokens found / tokens of prompts";
    "engine/paged_share", "share", "GPU only: rows of the engine's passes that attended to the cache's pages where they are, among those that decode; over all ranks. Others attended to a copy, which is several times as slow", "rows in place / rows alone in their chunk";
    "rollout/images_encoded", "count", "images that passes of the vision tower embedded, over all ranks; only with a tower", "";
    "rollout/images_reused", "count", "images of passes whose embeddings were in the cache instead, over all ranks; only with a tower", "";
    "update/images_encoded", "count", "images embedded without gradients since the rollout, for log-probs or with a frozen tower, over all ranks; only with a tower", "";
    "update/images_reused", "count", "the same that were in the cache instead", "";
    "rollout/logprob_diff_mean", "nats", "difference between the engine's log-probs and the update's before its first step", "mean |l_engine - l|";
    "rollout/logprob_diff_max", "nats", "largest difference between the engine's log-probs and the update's before its first step", "max |l_engine - l|";
    "reward/kl", "nats", "KL estimate against the reference that `kl_in_reward` subtracts", "mean over steps of the mean over a step's tokens";
    "reward/kl_coef", "", "coefficient of the KL estimate that `kl_in_reward` subtracts", "";
    "advantage/mean", "", "advantage of response tokens", "mean A";
    "advantage/std", "", "standard deviation of the advantages of response tokens", "sqrt(mean (A - mean A)^2)";
    "advantage/max", "", "largest advantage of a response token by magnitude", "max |A|";
    "advantage/zero_ratio", "share", "steps without any advantage, which do not train the policy", "steps with A = 0 on all tokens / steps";
    "anchor/groups", "count", "groups of steps taken in the same state, over all groups of episodes", "distinct (group, anchor)";
    "anchor/singleton_ratio", "share", "steps that are alone in their state's group, and so have no step-level advantage", "steps in groups of one / steps";
    "anchor/size_mean", "steps", "size of the groups of steps taken in the same state", "steps / anchor/groups";
    "anchor/size_max", "steps", "most steps taken in the same state, within one group of episodes", "";
    "loss/total", "", "loss that is differentiated", "loss/policy + kl coef loss/kl - entropy coef policy/entropy";
    "loss/policy", "", "policy loss as `update.aggregation` sums it", "ppo: -min(r A, clip(r) A)";
    "loss/kl", "nats", "KL estimate against the reference, before its weight; only with `update.kl`", "by `update.kl.kind`; k3: exp(l_ref - l) - (l_ref - l) - 1";
    "loss/<name>", "", "the loss plugin's own number of this name (`NESTOR_METRICS`)", "sum / response tokens";
    "policy/entropy", "nats", "entropy of the policy", "mean over response tokens of -sum_v p_v log p_v";
    "policy/clip_fraction", "share", "tokens where the clip is active or an importance weight is truncated", "active / tokens";
    "policy/dual_clip_fraction", "share", "tokens that the dual clip bounds; only with a loss that has one", "bound / tokens";
    "policy/approx_kl", "nats", "estimate of the KL divergence between the policies before and after the update", "mean (l_old - l)";
    "grad/norm", "", "global gradient norm before clipping", "mean over optimizer steps of sqrt(sum g^2)";
    "grad/skipped", "count", "optimizer steps skipped because a gradient was not finite", "";
    "grad/loss_scale", "", "factor of the loss in the last backward pass, in float16 only", "";
    "loss/value", "", "value loss of the critic", "max((V - R)^2, (clip(V) - R)^2), as aggregated";
    "value/clip_fraction", "share", "values where the clip is active", "active / tokens";
    "value/explained_variance", "share", "share of the returns' variance that the critic's values explain before its update", "1 - Var(R - V) / Var(R)";
    "value/mean", "reward", "value of the states before response tokens", "mean V";
    "value/return_mean", "reward", "return that the critic's values aim at", "mean R";
    "value/grad_norm", "", "global gradient norm of the critic before clipping", "mean over optimizer steps of sqrt(sum g^2)";
    "value/grad_skipped", "count", "optimizer steps of the critic skipped because a gradient was not finite", "";
    "lr", "", "learning rate", "";
    "update/tokens_per_s", "tokens/s", "trained tokens per second, including prompts, over all ranks", "tokens of sequences / time/update_s";
    "update/mfu", "share", "model FLOPs utilization of the update (arXiv 2204.02311): FLOPs of distinct tokens without recomputation, relative to the peak of the ranks' devices", "3 forward FLOPs / (time/update_s ranks peak)";
    "perf/tree_factor", "", "tokens of the update's sequences relative to those that it computes: tokens that sequences of a micro-batch begin with in common count once", "tokens / distinct tokens";
    "perf/mfu", "share", "model FLOPs utilization of the iteration", "(generation + log-probs + 3 forward of trained tokens) / (time/iteration_s ranks peak)";
    "perf/peak_flops", "FLOP/s", "peak of one rank's device in the compute type: that of a known GPU's data sheet, else the best rate of a large matrix product, on a CPU measured again after each iteration; at least the rate that the run reaches", "2 n^3 / s";
    "warm_start/loss", "nats", "negative log-prob of the learned tokens in the last warm-start step", "mean -l";
    "warm_start/validation_loss", "nats", "negative log-prob of the held-out chats' tokens after the warm start", "mean -l";
    "time/generate_s", "s", "part of time/rollout_s: passes of the engine that decoded; a pass that decoded and computed prompts is shared by its rows", "measured at rank 0";
    "time/prefill_s", "s", "part of time/rollout_s: passes of the engine that computed prompts", "measured at rank 0";
    "time/env_wait_s", "s", "part of time/rollout_s: waits for environments, during which nothing was computed", "measured at rank 0";
    "time/<phase>_s", "s", "wall time of one phase, such as rollout or update; the phases of a row add up to time/iteration_s", "measured at rank 0";
    "time/iteration_s", "s", "wall time since the previous row", "measured at rank 0";
    "memory/rss_bytes", "bytes", "resident memory of rank 0's process", "VmRSS";
    "memory/peak_rss_bytes", "bytes", "peak resident memory of rank 0's process", "VmHWM";
    "memory/free_bytes", "bytes", "memory of rank 0's device that is still available", "GPU: free memory and libtorch's reserve; CPU: MemAvailable, or the room of the control group";
    "memory/device_peak_bytes", "bytes", "GPU only: peak memory of the tensors on rank 0's device since the previous row", "libtorch's peak of allocated bytes";
    "memory/device_peak_reserved_bytes", "bytes", "GPU only: peak memory that libtorch took from rank 0's device since the previous row, for tensors and as its reserve", "libtorch's peak of reserved bytes";
    "memory/device_retries", "count", "GPU only: allocations at rank 0 since the previous row that failed until libtorch gave its reserve back; more than a few slow a run down", "libtorch's num_alloc_retries";
};

/// The entry of a name; none for an unknown name.
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
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets or replaces a value. Panics on a name that is not in the table, which is a bug.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        assert!(find(&name).is_some(), "metric `{name}` is not in the table of core/nestor/src/track/metrics.rs");
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, slot)) => *slot = value,
            None => self.0.push((name, value)),
        }
    }

    /// Sets a plugin's own number, as FAMILY/NAME. Refuses a name of Nestor's own.
    pub fn set_of_plugin(&mut self, family: &str, name: &str, value: f64) -> Result<()> {
        let full = format!("{family}/{name}");
        ensure!(
            METRICS.iter().all(|metric| metric.name != full),
            "the plugin's metric `{name}` would be {full}, which is a metric of Nestor's own; rename it in the plugin"
        );
        self.set(full, value);
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Names and values in the order set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The line of `metrics.jsonl`. Values that are not finite become null.
    pub fn to_json(&self, iteration: u64) -> String {
        let mut row = serde_json::Map::new();
        row.insert("iteration".into(), iteration.into());
        row.extend(self.iter().map(|(name, value)| (name.to_string(), value.into())));
        serde_json::Value::Object(row).to_string()
    }
}
