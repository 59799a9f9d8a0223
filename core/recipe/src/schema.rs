//! What a recipe may say: one struct per section, one doc line per key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Critic, Update};

/// A run, described by one YAML file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Seed of weights, tasks, environments and sampling.
    #[serde(default)]
    pub seed: u64,
    /// Bit-identical runs: fixed row counts and order of admission. Slower.
    #[serde(default)]
    pub deterministic: bool,
    /// How parameters are spread over ranks; with one rank it makes no difference.
    #[serde(default)]
    pub sharding: Sharding,
    /// Where to compute; `auto` takes a GPU if there is one.
    #[serde(default)]
    pub device: DeviceChoice,
    /// The compute type; master weights and optimiser are float32 always.
    #[serde(default)]
    pub dtype: Dtype,
    /// Number of iterations of reinforcement learning.
    pub iterations: u64,
    /// The policy to start from.
    pub model: ModelSource,
    /// The environment plugin.
    pub env: PluginChoice,
    /// The advantage estimator plugin.
    pub estimator: PluginChoice,
    /// How episodes are played.
    pub rollout: Rollout,
    /// How the policy is updated.
    pub update: Update,
    /// The critic, for estimators that ask for values: the policy's network with a head to one number, trained beside it
    /// with the betas, weight decay, aggregation and mini-batches of `update`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<Critic>,
    /// Imitation of the environment's expert before reinforcement learning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<WarmStart>,
    /// Evaluation on a fixed task list.
    pub eval: Eval,
    /// When the run is saved.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// How long ranks wait for each other.
    #[serde(default)]
    pub dist: Dist,
    /// Tracking in Weights & Biases; without the section there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wandb: Option<Wandb>,
}

/// How parameters are spread over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", clap(rename_all = "snake_case"))]
pub enum Sharding {
    /// Each rank holds a part of weights, gradients and optimiser; a unit is gathered whole while it is used.
    #[default]
    Full,
    /// Each rank holds all weights in the compute type, and a part of gradients and optimiser.
    GradOp,
    /// One rank holds everything.
    None,
}

/// Where to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// A GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; an error if there is none.
    Cuda,
}

/// The compute type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit floats.
    Float32,
    /// bfloat16.
    #[default]
    Bfloat16,
}

/// The policy to start from: `path`, or `new`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSource {
    /// A Hugging Face folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// A model with random weights and a tokenizer trained on the environment's texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<NewModel>,
    /// Trains every linear projection of the blocks through low-rank adapters, W0 + alpha / rank * B A, and nothing else
    /// of the policy; without it all weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

/// Low-rank adapters (arXiv 2106.09685), as peft has them without dropout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rows of A and columns of B.
    pub rank: i64,
    /// B A counts alpha / rank times.
    pub alpha: f64,
}

/// A small model with random weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewModel {
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the feed-forward layers.
    pub intermediate_size: i64,
    /// Number of blocks.
    pub layers: i64,
    /// Number of query heads.
    pub heads: i64,
    /// Number of key-value heads.
    pub kv_heads: i64,
    /// Size of the tokenizer's vocabulary, special tokens included.
    pub vocab_size: i64,
    /// Standard deviation of the random weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
}

/// A plugin by id or file, and its own configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginChoice {
    /// Id of a plugin found beside the binary, or path of a plugin file.
    pub plugin: String,
    /// Handed to the plugin, which checks it.
    #[serde(default = "empty_map")]
    pub config: serde_json::Value,
}

/// How episodes are played.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// Tasks per iteration, one group each.
    pub tasks: u32,
    /// Episodes per task.
    pub group_size: u32,
    /// Trains only on groups whose episodes differ in return: others are dropped and further tasks played.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSampling>,
    /// Steps after which an episode is cut.
    pub max_steps: u32,
    /// Longest prompt in tokens; in a transcript, the longest new part of it.
    pub max_prompt_tokens: usize,
    /// Longest response in tokens.
    pub max_response_tokens: usize,
    /// Longest conversation in tokens; `history.mode: transcript` needs it, and ends an episode that has no room left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sequence_tokens: Option<usize>,
    /// Sampling temperature.
    #[serde(default = "one")]
    pub temperature: f64,
    /// Sample among the k likeliest tokens; 0 is off.
    #[serde(default)]
    pub top_k: i64,
    /// Sample among the likeliest tokens that hold this much probability; 1 is off.
    #[serde(default = "one")]
    pub top_p: f64,
    /// Requests decoded at once.
    #[serde(default = "default_slots")]
    pub slots: usize,
    /// Tokens whose keys and values are kept at most; when there is no room, requests wait. Without it as many as `slots` requests may need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_tokens: Option<usize>,
    /// Threads that step environments.
    #[serde(default = "default_env_threads")]
    pub env_threads: usize,
    /// Failures of the environment that an iteration survives at each rank: the episode ends with the step that failed, a failed reset is tried again.
    #[serde(default)]
    pub env_errors: u64,
    /// What of the episode so far a prompt holds.
    #[serde(default)]
    pub history: History,
    /// Replaces the environment's prompt template (minijinja).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Whether the chat template asks the model to think before it answers; without it the template's default. The template must have the switch `enable_thinking`, as Qwen3's has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<bool>,
    /// What to do with a prompt over `max_prompt_tokens`.
    #[serde(default)]
    pub truncation: Truncation,
    /// Subtracted from the reward of a step whose response the environment could not read.
    #[serde(default = "default_penalty")]
    pub invalid_action_penalty: f64,
    /// Split of the environment that training tasks come from.
    #[serde(default = "train_split")]
    pub split: String,
}

/// Replacing groups whose episodes all have the same return, penalties left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DynamicSampling {
    /// Rounds of an iteration at most; the last is kept as it is, so that `tasks` groups are trained on in any case.
    pub rounds: u32,
}

/// What of the episode so far a prompt holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// How a prompt is built from an episode.
    #[serde(default)]
    pub mode: HistoryMode,
    /// Steps of history in a prompt, 2 if left out; for `mode: window`, since a transcript holds them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
}

/// How a prompt is built from an episode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum HistoryMode {
    /// Each step's prompt is built afresh with the last steps (the paper's way).
    #[default]
    Window,
    /// An episode is one conversation: what was sampled stays in it as it is, and each step adds a turn.
    Transcript,
}

/// What to do with a prompt that is too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// End the run with an error that names the step.
    #[default]
    Error,
    /// Keep the last tokens.
    Left,
    /// Keep the first tokens.
    Right,
    /// Keep the first and the last half.
    Middle,
}

/// Imitation of the environment's expert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmStart {
    /// Optimiser steps.
    pub steps: u64,
    /// Environment steps per optimiser step.
    pub batch: usize,
    /// Learning rate.
    pub lr: f64,
    /// Share of the expert's actions replaced by random valid ones.
    #[serde(default)]
    pub expert_noise: f64,
}

/// Evaluation on a fixed task list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eval {
    /// Iterations between evaluations; 0 evaluates only before and after.
    #[serde(default)]
    pub every: u64,
    /// Number of tasks, from the first of the split.
    pub tasks: u32,
    /// Sampling temperature; 0 is greedy.
    #[serde(default = "one")]
    pub temperature: f64,
    /// Split of the environment that evaluation tasks come from.
    #[serde(default = "eval_split")]
    pub split: String,
}

/// When the run is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Iterations between checkpoints; 0 saves only at the end.
    #[serde(default)]
    pub every: u64,
    /// Checkpoints kept.
    #[serde(default = "default_keep")]
    pub keep: usize,
    /// Iterations between saved rollouts (the episodes trained on, as JSONL); 0 saves none.
    #[serde(default = "one_u64")]
    pub rollouts_every: u64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every: 0, keep: default_keep(), rollouts_every: 1 }
    }
}

/// How long ranks wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dist {
    /// Seconds after which a collective, or the meeting of the ranks, fails.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u64,
    /// Seconds without a sign of life after which a rank counts as dead, and all others end.
    #[serde(default = "default_silence_s")]
    pub silence_s: u64,
}

impl Default for Dist {
    fn default() -> Self {
        Self { timeout_s: default_timeout_s(), silence_s: default_silence_s() }
    }
}

/// Tracking in Weights & Biases. The key comes from the environment alone (`WANDB_API_KEY`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wandb {
    /// Where rows go.
    #[serde(default)]
    pub mode: WandbMode,
    /// The project.
    #[serde(default = "default_project")]
    pub project: String,
    /// The team or user; without it the key's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// The run's name; without it the run directory's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The group that the run is listed under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// Iterations between two tables of episodes, turn by turn; 0 writes none.
    #[serde(default = "default_table_every")]
    pub table_every: u64,
    /// Episodes in such a table: whole groups as far as they fit.
    #[serde(default = "default_table_episodes")]
    pub table_episodes: usize,
}

/// Where the rows of a tracked run go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WandbMode {
    /// Into a run file, which `wandb sync` uploads later.
    #[default]
    Offline,
    /// Into a run file, which the `wandb` program uploads while the run goes on.
    Live,
    /// Nowhere.
    Disabled,
}

fn default_project() -> String {
    "nestor".into()
}
fn default_table_every() -> u64 {
    10
}
fn default_table_episodes() -> usize {
    8
}
fn empty_map() -> serde_json::Value {
    serde_json::Value::Object(serde_json::Map::new())
}
pub(super) fn one() -> f64 {
    1.0
}
fn one_u64() -> u64 {
    1
}
fn default_slots() -> usize {
    64
}
fn default_env_threads() -> usize {
    2
}
fn default_penalty() -> f64 {
    0.1
}
fn train_split() -> String {
    "train".into()
}
fn eval_split() -> String {
    "eval".into()
}
fn default_initializer_range() -> f64 {
    0.02
}
fn default_keep() -> usize {
    2
}
fn default_timeout_s() -> u64 {
    600
}
fn default_silence_s() -> u64 {
    30
}
