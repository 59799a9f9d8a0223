//! A loss of a plugin (recipe section `loss`). The plugin gives numbers, not a graph: losses l_k, and for each token the
//! derivatives d_j and e_j of its response's sum of losses by log-prob x_j and entropy H_j. With x' and H' held constant,
//!
//! ```text
//! l_k + d_k (x_k - x'_k) + e_k (H_k - H'_k)
//! ```
//!
//! has the value of l_k and, summed with equal weights over a response, the plugin's derivatives.

use std::borrow::Cow;

use anyhow::{Result, bail};
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

/// The token losses of a plugin, with a graph of its derivatives. All columns have one entry for each response token (R); they are
/// copied to the host, and the plugin's numbers back.
pub fn loss(inputs: &LossInputs, plugin: PluginLoss) -> Result<TokenLoss> {
    let needs = plugin.loss.needs();
    let reference = inputs.ref_logprobs.filter(|_| needs.reference);
    let columns = [inputs.logprobs, inputs.old_logprobs, inputs.behaviour, inputs.entropy, inputs.advantages];
    let columns: Vec<Tensor> = columns.into_iter().chain(reference).map(Tensor::detach).collect();
    // One copy, since on a GPU each waits for the device.
    let numbers = Vec::<f32>::try_from(Tensor::cat(&columns, 0).to_kind(Kind::Float))?;
    let mut columns = numbers.chunks((numbers.len() / columns.len()).max(1)).map(<[f32]>::to_vec);
    let mut column = || columns.next().unwrap_or_default();
    let [mini_batch_responses, mini_batch_tokens, most_response_tokens] = inputs.token_weights.totals();
    let TokenLosses { losses, by_logprob, by_entropy, metrics } = plugin.loss.compute(ResponseTokens {
        token_offsets: offsets(&Vec::try_from(inputs.responses)?),
        logprobs: column(),
        detached_logprobs: None,
        old_logprobs: column(),
        behaviour: column(),
        entropy: column(),
        advantages: column(),
        ref_logprobs: reference.map(|_| column()),
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
        bail!("plugin {}: its metric `{name}` would be Nestor's own loss/{name}; rename it", plugin.loss.id());
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
