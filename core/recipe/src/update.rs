//! The sections `update` and `critic` of a recipe: losses, optimizer, schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::defaults::{one, one_u32};
use super::error::Problem;
use super::{Optimizer, Recompute};

/// Update of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// Environment steps per optimizer step, over all ranks.
    pub mini_batch: usize,
    /// Tokens per forward and backward pass. Tokens that its sequences begin with in common count once.
    #[serde(default = "default_micro_batch_tokens")]
    pub micro_batch_tokens: usize,
    /// Number of passes over the iteration's steps.
    #[serde(default = "one_u32")]
    pub epochs: u32,
    /// Ends an update before its next epoch where `policy/approx_kl`, averaged over the last epoch's optimizer steps, exceeds this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_kl: Option<f64>,
    /// Leaves responses without an end-of-sequence token, cut at `rollout.max_response_tokens`, out of the policy's loss. Their
    /// rewards still count for the advantages of others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mask_cut_responses: bool,
    /// Shuffles the steps before they are cut into mini-batches.
    #[serde(default)]
    pub shuffle: bool,
    /// Trains on a resample of the iteration's steps by their rewards (PF-PPO).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reweight: Option<Reweight>,
    /// Normalisation of a short last mini-batch.
    #[serde(default)]
    pub short_mini_batch: ShortMiniBatch,
    /// Peak learning rate.
    pub lr: f64,
    /// Iterations in which the learning rate rises from `lr` * `min_lr_ratio` to `lr`.
    #[serde(default)]
    pub warmup: u64,
    /// The learning rate after the warm-up.
    #[serde(default)]
    pub schedule: Schedule,
    /// Lowest learning rate, as a share of `lr`: the start of the warm-up and the end of a schedule that falls.
    #[serde(default)]
    pub min_lr_ratio: f64,
    /// The optimizer of the policy, the critic and the warm start.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Largest global gradient norm.
    #[serde(default = "one")]
    pub grad_clip: f64,
    /// Optimizer steps in a row, at least 1, that may be skipped because their gradients were not finite. The run then ends with exit
    /// code 1 and names its last good checkpoint. It counts for the warm start and the critic too. In `dtype: float16`, steps
    /// that only lower the loss scale do not count.
    #[serde(default = "default_max_skipped")]
    pub max_skipped: u32,
    /// The policy loss on a token.
    #[serde(default)]
    pub loss: PolicyLoss,
    /// Clip range below 1.
    #[serde(default = "default_clip")]
    pub clip_low: f64,
    /// Clip range above 1.
    #[serde(default = "default_clip")]
    pub clip_high: f64,
    /// Dual clip: bound on the ratio for negative advantages, greater than 1; only with `loss: clip`.
    #[serde(default = "default_dual_clip")]
    pub dual_clip: f64,
    /// Weight of the entropy bonus.
    #[serde(default = "default_entropy")]
    pub entropy: f64,
    /// KL loss against the frozen reference. Without this section and `kl_in_reward` there is no reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<KlLoss>,
    /// KL against the frozen reference, subtracted from each token's reward before advantages are estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_in_reward: Option<KlInReward>,
    /// Reduction of token losses to one number.
    #[serde(default)]
    pub aggregation: Aggregation,
    /// Reduction of the KL loss and the entropy bonus; by default `aggregation`, and `token-mean` with `loss: gspo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regularizer_aggregation: Option<Aggregation>,
    /// Source of the old log-probs of the ratio.
    #[serde(default)]
    pub old_logprobs: OldLogprobs,
    /// Cap of truncated importance weights. With `old_logprobs: recompute` the clipped loss is multiplied by the ratio of
    /// old to engine probability; with `rollout` the ratio of policy to engine probability replaces the clip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance_cap: Option<f64>,
    /// Blocks that the backward pass recomputes.
    #[serde(default)]
    pub recompute: Recompute,
    /// The optimizer's tensors that rest in the host's memory between two optimizer steps.
    #[serde(default, skip_serializing_if = "Offload::is_none")]
    pub offload: Offload,
    /// With `dtype: float16`: factor of the loss that a run begins with, 65,536 by default. It halves after a gradient that
    /// is not finite, and doubles after 2,000 good optimizer steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
}

impl Update {
    /// The first key of a built-in loss that is not at its default, beside a section `loss` that replaces them.
    pub(super) fn given_to_built_in_losses(&self) -> Option<Problem> {
        let given = [
            ("loss", self.loss != PolicyLoss::default()),
            ("clip_low", self.clip_low != default_clip()),
            ("clip_high", self.clip_high != default_clip()),
            ("dual_clip", self.dual_clip != default_dual_clip()),
            ("importance_cap", self.importance_cap.is_some()),
        ];
        let (key, _) = given.into_iter().find(|(_, given)| *given)?;
        let message = "belongs to the built-in losses, and the section `loss` names a plugin with keys of its own (`loss.config`); leave one \
                       out";
        Some((format!("update.{key}"), message.into()))
    }

    /// Reduction of the KL loss and the entropy bonus.
    pub fn regularizer_aggregation(&self) -> Aggregation {
        self.regularizer_aggregation.unwrap_or(match self.loss {
            PolicyLoss::Clip | PolicyLoss::Cispo => self.aggregation,
            PolicyLoss::Gspo => Aggregation::TokenMean,
        })
    }
}

/// PF-PPO's resample of an iteration: as many steps as there are (episodes in a transcript), drawn with replacement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reweight {
    /// Weights of the draws.
    #[serde(default)]
    pub method: ReweightMethod,
    /// Power of the reward's magnitude, with `pow`.
    #[serde(default = "default_reweight_power")]
    pub power: f64,
}

/// Weights of the draws, from the sum of a step's token rewards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReweightMethod {
    /// A power of the magnitude.
    #[default]
    Pow,
    /// Only the iteration's largest and smallest.
    MaxMin,
    /// The largest four times as often as any other.
    MaxRandom,
}

/// KL loss against the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KlLoss {
    /// Weight of the KL loss.
    pub coef: f64,
    /// Estimator of the KL, from log-probs x (policy) and y (reference).
    #[serde(default)]
    pub kind: KlKind,
}

/// KL against the reference as a part of the reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KlInReward {
    /// Coefficient of the KL; the initial one if `adaptive` is set.
    #[serde(default = "default_kl_in_reward")]
    pub coef: f64,
    /// Estimator of the KL, from log-probs x (old) and y (reference).
    #[serde(default = "k1")]
    pub kind: KlKind,
    /// Adapts the coefficient after each iteration towards a target KL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKl>,
}

/// An adaptive KL coefficient, multiplied by 1 + clip(KL / target - 1, -0.2, 0.2) * steps / horizon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveKl {
    /// Target KL in nats per token.
    #[serde(default = "default_kl_target")]
    pub target: f64,
    /// Time constant of the adaptation, in environment steps.
    #[serde(default = "default_kl_horizon")]
    pub horizon: u64,
}

/// The critic of estimators that need values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Critic {
    /// Constant learning rate of the critic.
    #[serde(default = "default_critic_lr")]
    pub lr: f64,
    /// Most that a value may differ from its value before the update.
    #[serde(default = "default_value_clip")]
    pub clip: f64,
    /// Largest global gradient norm.
    #[serde(default = "one")]
    pub grad_clip: f64,
    /// Number of first iterations that train only the critic.
    #[serde(default)]
    pub warmup: u64,
}

/// The policy loss on a token; `importance_cap` is a third.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// PPO's clipped ratio per token.
    #[default]
    Clip,
    /// GSPO's clipped ratio per response.
    Gspo,
    /// CISPO's clipped ratio per token as a weight of the log-prob.
    Cispo,
}

impl PolicyLoss {
    /// The first key of `update` that does not fit this loss.
    pub(super) fn problem(self, update: &Update) -> Option<Problem> {
        let needs =
            |good: bool, key: &str, message: &str| (!good).then(|| (format!("update.{key}"), message.to_string()));
        match self {
            Self::Clip => None,
            // A ratio of whole responses. The difference between the engine's log-probs and the update's exceeds its clip range of
            // about 3e-4.
            Self::Gspo => needs(
                update.old_logprobs == OldLogprobs::Recompute,
                "old_logprobs",
                "must be `recompute` with `update.loss: gspo`",
            )
            .or_else(|| {
                let fits = update.aggregation == Aggregation::SeqMeanTokenMean;
                needs(fits, "aggregation", "must be `seq-mean-token-mean` with `update.loss: gspo`")
            })
            .or_else(|| {
                needs(update.importance_cap.is_none(), "importance_cap", "must be left out with `update.loss: gspo`")
            }),
            Self::Cispo => {
                needs(update.importance_cap.is_none(), "importance_cap", "must be left out with `update.loss: cispo`")
            }
        }
    }
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

/// Reduction of token losses to one number.
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
    /// Sum over a response's tokens, divided by `rollout.max_response_tokens`, mean over responses (Dr. GRPO).
    SeqMeanTokenSumNorm,
    /// Sum over all tokens, divided by `rollout.max_response_tokens`, as the reference implementation has it under the name
    /// `seq-mean-token-sum-norm`: the gradient grows with the number of responses.
    TokenSumNorm,
}

/// Source of the old log-probs of the ratio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OldLogprobs {
    /// The engine's log-probs, recorded while sampling.
    #[default]
    Rollout,
    /// The update's own forward pass before the first optimizer step.
    Recompute,
}

/// Normalisation of a short last mini-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShortMiniBatch {
    /// Divides by its own count.
    #[default]
    Mean,
    /// Divides by the count of a full one: a proportionally smaller gradient, as in the reference implementation.
    Reference,
}

/// The learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Stays at `lr`.
    #[default]
    Constant,
    /// Falls along half a cosine to `min_lr_ratio`.
    Cosine,
    /// Falls along a line to `min_lr_ratio`.
    Linear,
}

/// The optimizer's tensors that rest in the host's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Offload {
    /// None.
    #[default]
    None,
    /// Its state: the moments of AdamW, the momentum of Muon.
    Moments,
    /// Its state and the float32 master weights; not with `dtype: float32`.
    All,
}

impl Offload {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

fn default_micro_batch_tokens() -> usize {
    16_384
}
fn default_max_skipped() -> u32 {
    10
}
fn default_reweight_power() -> f64 {
    2.0
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
