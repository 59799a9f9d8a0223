//! The sections `update` and `critic` of a recipe: losses, optimiser, schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recompute;
use super::schema::one;

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

fn one_u32() -> u32 {
    1
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
