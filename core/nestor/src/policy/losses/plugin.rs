//! A loss of a plugin (recipe section `loss`). The plugin gives numbers, not a graph: losses l_k, and for each token the
//! derivatives d_j and e_j of its response's sum of losses by log-prob x_j and entropy H_j. With x' and H' held constant,
//!
//! ```text
//! l_k + d_k (x_k - x'_k) + e_k (H_k - H'_k)
//! ```
//!
//! has the value of l_k and, summed with equal weights over a response, the plugin's derivatives.

use std::borrow::Cow;

use anyhow::{Result, ensure};
use tch::{Kind, Tensor};

use super::{LossInputs, TokenLoss};
use crate::plugin::{Loss, ResponseTokens, TokenLosses};

/// Metrics of Nestor's own below `loss/`.
const OWN: [&str; 4] = ["total", "policy", "kl", "value"];

/// An open loss, and the iteration that it is for.
#[derive(Debug, Clone, Copy)]
pub struct PluginLoss<'a> {
    pub loss: &'a Loss,
    /// Number of the iteration, from 1.
    pub iteration: u64,
    /// Iterations of the run.
    pub iterations: u64,
}

pub fn loss(inputs: &LossInputs, plugin: PluginLoss) -> Result<TokenLoss> {
    let column =
        |x: &Tensor| -> Result<Vec<f32>> { Ok(Vec::try_from(x.detach().to_kind(Kind::Float).flatten(0, -1))?) };
    let [mini_batch_responses, mini_batch_tokens, most_response_tokens] = inputs.token_weights.totals();
    let needs = plugin.loss.needs();
    let TokenLosses { losses, by_logprob, by_entropy, metrics } = plugin.loss.compute(ResponseTokens {
        token_offsets: offsets(&Vec::try_from(inputs.responses)?),
        logprobs: column(inputs.logprobs)?,
        detached_logprobs: None,
        old_logprobs: column(inputs.old_logprobs)?,
        behaviour: column(inputs.behaviour)?,
        ref_logprobs: inputs.ref_logprobs.filter(|_| needs.reference).map(column).transpose()?,
        entropy: column(inputs.entropy)?,
        advantages: column(inputs.advantages)?,
        mini_batch_responses,
        mini_batch_tokens,
        most_response_tokens,
        iteration: plugin.iteration,
        iterations: plugin.iterations,
    })?;
    let tensor = |numbers: &[f64]| Tensor::from_slice(numbers).to_kind(Kind::Float).to_device(inputs.logprobs.device());
    let change = |x: &Tensor, derivatives: &[f64]| tensor(derivatives) * (x - x.detach());
    let mut loss = tensor(&losses) + change(inputs.logprobs, &by_logprob);
    if needs.entropy {
        loss += change(inputs.entropy, &by_entropy);
    }
    if let Some(name) = metrics.keys().find(|name| OWN.contains(&name.as_str())) {
        ensure!(false, "plugin {}: its metric `{name}` would be Nestor's own loss/{name}; rename it", plugin.loss.id());
    }
    let metrics = metrics.into_iter().map(|(name, sum)| (Cow::from(format!("loss/{name}")), Tensor::from(sum)));
    Ok(TokenLoss { loss, metrics: metrics.collect() })
}

/// Starts of responses (B + 1), from the response that each token belongs to.
fn offsets(responses: &[i64]) -> Vec<u64> {
    let starts = (1..responses.len()).filter(|&at| responses[at] != responses[at - 1]);
    let starts = starts.map(|at| at as u64);
    let end = (!responses.is_empty()).then_some(responses.len() as u64);
    [0].into_iter().chain(starts).chain(end).collect()
}
