//! What a recipe may say: one struct per section, one doc line per key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recompute;

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
    /// How parameters are spread over ranks.
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
}

/// How parameters are spread over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// One rank holds everything.
    #[default]
    None,
}

/// Where to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
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
    /// Threads that step environments.
    #[serde(default = "default_env_threads")]
    pub env_threads: usize,
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

/// How the policy is updated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// Steps per optimiser step, over all ranks.
    pub mini_batch: usize,
    /// Tokens per forward and backward pass.
    #[serde(default = "default_micro_batch_tokens")]
    pub micro_batch_tokens: usize,
    /// Passes over the iteration's steps.
    #[serde(default = "one_u32")]
    pub epochs: u32,
    /// Shuffle steps before cutting mini-batches.
    #[serde(default)]
    pub shuffle: bool,
    /// How a short last mini-batch is normalised.
    #[serde(default)]
    pub short_mini_batch: ShortMiniBatch,
    /// Peak learning rate.
    pub lr: f64,
    /// Iterations over which the learning rate rises from `lr` * `min_lr_ratio` to `lr`.
    #[serde(default)]
    pub warmup: u64,
    /// Learning rate after the warm-up.
    #[serde(default)]
    pub schedule: Schedule,
    /// Lowest learning rate, as a share of `lr`: where the warm-up begins, and where a cosine schedule ends.
    #[serde(default)]
    pub min_lr_ratio: f64,
    /// AdamW's decay.
    #[serde(default = "default_weight_decay")]
    pub weight_decay: f64,
    /// AdamW's betas.
    #[serde(default = "default_betas")]
    pub betas: [f64; 2],
    /// Largest global gradient norm.
    #[serde(default = "one")]
    pub grad_clip: f64,
    /// The policy loss.
    #[serde(default)]
    pub loss: PolicyLoss,
    /// Clip range below 1.
    #[serde(default = "default_clip")]
    pub clip_low: f64,
    /// Clip range above 1.
    #[serde(default = "default_clip")]
    pub clip_high: f64,
    /// Bound on the loss for negative advantages, over 1 (dual clip); `gspo` has none.
    #[serde(default = "default_dual_clip")]
    pub dual_clip: f64,
    /// Weight of the entropy bonus.
    #[serde(default = "default_entropy")]
    pub entropy: f64,
    /// KL loss against the frozen reference; without it (and without `kl_in_reward`) no reference is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<KlLoss>,
    /// KL against the frozen reference, taken off every token's reward before advantages are estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_in_reward: Option<KlInReward>,
    /// How token losses become one number.
    #[serde(default)]
    pub aggregation: Aggregation,
    /// Which log-probs count as old.
    #[serde(default)]
    pub old_logprobs: OldLogprobs,
    /// Truncated importance weights: the largest weight. With `old_logprobs: recompute` the clipped loss is multiplied by
    /// the ratio of old to engine probability, with `rollout` that of policy to engine takes the place of the clip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance_cap: Option<f64>,
    /// Which blocks are computed again in the backward pass.
    #[serde(default)]
    pub recompute: Recompute,
}

/// KL loss against the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KlLoss {
    /// Its weight.
    pub coef: f64,
    /// Its estimator.
    #[serde(default)]
    pub kind: KlKind,
}

/// KL against the reference in the reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KlInReward {
    /// Its coefficient; the first one where it is adaptive.
    #[serde(default = "default_kl_in_reward")]
    pub coef: f64,
    /// Its estimator, of old log-probs against the reference's.
    #[serde(default = "k1")]
    pub kind: KlKind,
    /// Moves the coefficient after each iteration, so that the KL comes near a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKl>,
}

/// An adaptive KL coefficient: it is multiplied by 1 + clip(KL / target - 1, -0.2, 0.2) * steps / horizon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveKl {
    /// The KL aimed at, in nats per token.
    #[serde(default = "default_kl_target")]
    pub target: f64,
    /// Environment steps over which the coefficient moves.
    #[serde(default = "default_kl_horizon")]
    pub horizon: u64,
}

/// The critic of estimators that ask for values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Critic {
    /// Its learning rate, the same in every iteration.
    #[serde(default = "default_critic_lr")]
    pub lr: f64,
    /// How far a value may move from the one before the update.
    #[serde(default = "default_value_clip")]
    pub clip: f64,
    /// Largest global gradient norm.
    #[serde(default = "one")]
    pub grad_clip: f64,
    /// First iterations, in which the critic learns and the policy stays.
    #[serde(default)]
    pub warmup: u64,
}

/// The policy loss on a token, see `importance_cap` for a third.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// PPO's clipped ratio of each token.
    #[default]
    Clip,
    /// GSPO's clipped ratio of the whole response.
    Gspo,
}

/// Estimators of the KL divergence from log-probs x (policy) and y (reference) of sampled tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlKind {
    /// x - y.
    K1,
    /// (x - y)^2 / 2.
    K2,
    /// exp(y - x) - (y - x) - 1, clamped to [-10, 10].
    #[default]
    K3,
    /// |x - y|.
    Abs,
}

/// How token losses become one number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// Mean over the response tokens of the global mini-batch.
    #[default]
    TokenMean,
    /// Sum over a response's tokens, mean over responses.
    SeqMeanTokenSum,
    /// Mean over a response's tokens, mean over responses.
    SeqMeanTokenMean,
    /// Sum over all tokens, divided by `rollout.max_response_tokens` (Dr. GRPO).
    SeqMeanTokenSumNorm,
}

/// Which log-probs the ratio is taken against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OldLogprobs {
    /// Those the engine recorded while sampling.
    #[default]
    Rollout,
    /// The update's own forward pass, before the first optimiser step.
    Recompute,
}

/// How a short last mini-batch is normalised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShortMiniBatch {
    /// By its own count.
    #[default]
    Mean,
    /// As if it were full: a proportionally smaller gradient, as the reference implementation has it.
    Reference,
}

/// Learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Stays.
    #[default]
    Constant,
    /// Falls along half a cosine to `min_lr_ratio`.
    Cosine,
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

fn empty_map() -> serde_json::Value {
    serde_json::Value::Object(serde_json::Map::new())
}
fn one() -> f64 {
    1.0
}
fn one_u64() -> u64 {
    1
}
fn one_u32() -> u32 {
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
fn default_micro_batch_tokens() -> usize {
    16_384
}
fn default_weight_decay() -> f64 {
    0.01
}
fn default_betas() -> [f64; 2] {
    [0.9, 0.999]
}
fn default_clip() -> f64 {
    0.2
}
fn default_dual_clip() -> f64 {
    3.0
}
fn default_entropy() -> f64 {
    0.001
}
fn default_kl_in_reward() -> f64 {
    0.001
}
fn k1() -> KlKind {
    KlKind::K1
}
fn default_kl_target() -> f64 {
    0.1
}
fn default_kl_horizon() -> u64 {
    10_000
}
fn default_critic_lr() -> f64 {
    1e-5
}
fn default_value_clip() -> f64 {
    0.5
}
fn default_initializer_range() -> f64 {
    0.02
}
fn default_keep() -> usize {
    2
}
