//! The policy loss, one file for each: numbers of response tokens (R) in, one scalar and named metrics out. A loss of a plugin
//! ([`plugin`]) has the same place as a built-in one.
//!
//! With l_k the loss of token k, H_k its entropy, KL_k its KL estimate against the reference, and w_k, v_k the weights of the
//! aggregation ([`aggregation`]):
//!
//! ```text
//! loss/total = sum_k w_k l_k - entropy sum_k v_k H_k + kl.coef sum_k v_k KL_k
//! ```
//!
//! To add a loss: its file here, its line in [`token_loss`], and its name in `PolicyLoss` (`core/recipe/src/update.rs`). A
//! metric needs its entry in the list that a loss returns and in the table of `core/nestor/src/track/metrics.rs`.

mod aggregation;
mod cispo;
mod clip;
mod gspo;
mod kl;
mod metrics;
mod plugin;
mod truncated_importance;
mod value;

use std::borrow::Cow;

use anyhow::Result;
use tch::{Kind, Tensor};

use crate::recipe::{PolicyLoss, Update};

pub use aggregation::TokenWeights;
pub use kl::kl;
pub use metrics::{LossMetrics, MicroBatchMetrics};
pub use plugin::PluginLoss;
pub use value::{ValueInputs, value_loss};

/// Inputs of the policy loss, one entry per response token, float32 (R).
#[derive(Debug)]
pub struct LossInputs<'a> {
    /// Log-probs under the policy; differentiated.
    pub logprobs: &'a Tensor,
    /// Entropy of the policy's distribution; differentiated too.
    pub entropy: &'a Tensor,
    /// Log-probs the ratio is taken against.
    pub old_logprobs: &'a Tensor,
    /// Log-probs under which the engine sampled.
    pub behaviour: &'a Tensor,
    pub advantages: &'a Tensor,
    /// Log-probs under the frozen reference, where there is a KL loss.
    pub ref_logprobs: Option<&'a Tensor>,
    /// The response each token belongs to, from 0, int64.
    pub responses: &'a Tensor,
    /// Weight of each token in the policy's term, see [`TokenWeights::of`].
    pub weights: &'a Tensor,
    /// Weight of each token in the KL loss and the entropy bonus, see [`TokenWeights::of_regularizer`].
    pub regularizer_weights: &'a Tensor,
    /// Weights and totals of the mini-batch.
    pub token_weights: TokenWeights,
}

/// A loss before aggregation.
#[derive(Debug)]
pub struct TokenLoss {
    /// The loss of each token (R).
    pub loss: Tensor,
    /// Its own metrics: a number or a truth value for each token (R), or their sum, of which the mean is written under this name.
    pub metrics: Vec<(Cow<'static, str>, Tensor)>,
}

/// A loss and its metrics.
#[derive(Debug)]
pub struct LossOutputs {
    /// The scalar to differentiate.
    pub loss: Tensor,
    pub metrics: MicroBatchMetrics,
}

/// The loss that the recipe names.
fn token_loss(inputs: &LossInputs, update: &Update, plugin: Option<PluginLoss>) -> Result<TokenLoss> {
    if let Some(plugin) = plugin {
        return plugin::loss(inputs, plugin);
    }
    Ok(match (update.loss, update.importance_cap) {
        (PolicyLoss::Clip, None) => clip::loss(inputs, update),
        (PolicyLoss::Clip, Some(cap)) => truncated_importance::loss(inputs, update, cap),
        (PolicyLoss::Gspo, _) => gspo::loss(inputs, update),
        (PolicyLoss::Cispo, _) => cispo::loss(inputs, update),
    })
}

/// The policy loss that the recipe names, minus the entropy bonus, plus the KL loss.
pub fn policy_loss(inputs: &LossInputs, update: &Update, plugin: Option<PluginLoss>) -> Result<LossOutputs> {
    let TokenLoss { loss, metrics } = token_loss(inputs, update, plugin)?;
    // Terms of both signs nearly cancel: in float32 the order of summation would show.
    let weighted = |x: &Tensor, weights: &Tensor| (x * weights).sum(Kind::Double);
    let mean = |x: &Tensor| x.detach().sum(Kind::Double) * inputs.token_weights.mean();
    let policy = weighted(&loss, inputs.weights);
    let mut total = &policy - weighted(inputs.entropy, inputs.regularizer_weights) * update.entropy;
    let mut kl_mean = None;
    if let (Some(section), Some(reference)) = (&update.kl, inputs.ref_logprobs) {
        let kl = kl(section.kind, inputs.logprobs, reference);
        kl_mean = Some((Cow::from("loss/kl"), mean(&kl)));
        total += weighted(&kl, inputs.regularizer_weights) * section.coef;
    }
    let mut all = vec![("loss/total".into(), total.detach()), ("loss/policy".into(), policy.detach())];
    all.extend(kl_mean);
    all.push(("policy/entropy".into(), mean(inputs.entropy)));
    all.extend(metrics.into_iter().map(|(name, each)| (name, mean(&each))));
    all.push(("policy/approx_kl".into(), mean(&(inputs.old_logprobs - inputs.logprobs))));
    Ok(LossOutputs { loss: total, metrics: MicroBatchMetrics::new(&all) })
}
