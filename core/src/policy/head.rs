//! What stands on the states that are read: log-probs and entropies of response tokens, in chunks, so that logits of the
//! whole batch never exist; or a critic's values.

use tch::{Kind, Tensor, no_grad};

use super::packed::Packed;
use super::pass::{accumulate_gradients, states};
use crate::model::Model;
use crate::model::qwen2::OuterWeights;
use crate::recipe::Recompute;
use crate::shard::GradientSums;

/// Logit entries of one head chunk: bounds the memory of float32 logits to 128 MiB a copy.
const CHUNK_ELEMENTS: i64 = 1 << 25;

/// Log-prob and entropy of the response tokens, float32 (R) each.
#[derive(Debug)]
pub struct TokenStats {
    /// Log-probs at the sampling temperature.
    pub logprobs: Tensor,
    /// Entropies of the distributions they come from.
    pub entropy: Tensor,
}

/// A loss differentiated with respect to the token statistics.
#[derive(Debug)]
pub struct TokenGrads {
    /// d loss / d log-prob, (R).
    pub logprobs: Tensor,
    /// d loss / d entropy, (R); absent where the loss has no entropy term.
    pub entropy: Option<Tensor>,
}

/// How a pass is run.
#[derive(Debug, Clone, Copy)]
pub struct PassOptions {
    /// Logits are divided by it.
    pub temperature: f64,
    /// Which blocks the backward pass computes again.
    pub recompute: Recompute,
}

/// Log-probs and entropies of the response tokens, without gradients.
pub fn token_stats(model: &Model, packed: &Packed, temperature: f64) -> TokenStats {
    let states = states(model, packed);
    no_grad(|| head_stats(model, &states, &packed.targets, temperature))
}

/// Forward and backward pass of one micro-batch under a loss of its response tokens: adds the gradient to `sums`. `loss`
/// gets the token statistics and gives its gradient with respect to them.
pub fn policy_gradients<M>(
    model: &Model,
    packed: &Packed,
    options: PassOptions,
    sums: &mut GradientSums,
    loss: impl FnOnce(&TokenStats) -> (TokenGrads, M),
) -> M {
    accumulate_gradients(model, packed, options.recompute, sums, |states, sum| {
        let stats = no_grad(|| head_stats(model, states, &packed.targets, options.temperature));
        let (token_grads, metrics) = loss(&stats);
        (head_backward(model, states, packed, options.temperature, &token_grads, sum), metrics)
    })
}

/// A critic's values of the states (N), float32, without gradients.
pub fn values(critic: &Model, packed: &Packed) -> Tensor {
    let states = states(critic, packed);
    no_grad(|| value_head(critic, &critic.outer_weights(false), &states))
}

/// Forward and backward pass of one micro-batch under a loss of its values (N): adds the gradient to `sums`.
pub fn value_gradients<M>(
    critic: &Model,
    packed: &Packed,
    recompute: Recompute,
    sums: &mut GradientSums,
    loss: impl FnOnce(&Tensor) -> (Tensor, M),
) -> M {
    accumulate_gradients(critic, packed, recompute, sums, |states, sum| {
        let outer = critic.outer_weights(sum.is_some());
        let states = states.detach().set_requires_grad(true);
        let (loss, metrics) = loss(&value_head(critic, &outer, &states));
        (backward(critic, &outer, &states, &loss, sum), metrics)
    })
}

fn value_head(critic: &Model, outer: &OuterWeights, states: &Tensor) -> Tensor {
    critic.head(outer, states).squeeze_dim(-1).to_kind(Kind::Float)
}

/// Rows of one head chunk.
fn chunk_rows(model: &Model) -> i64 {
    (CHUNK_ELEMENTS / model.config.vocab_size).max(1)
}

/// Statistics of one chunk: states (n, E) and targets (n).
fn chunk_stats(model: &Model, outer: &OuterWeights, states: &Tensor, targets: &Tensor, temperature: f64) -> TokenStats {
    let logits = model.head(outer, states).to_kind(Kind::Float) / temperature;
    let all = logits.log_softmax(-1, Kind::Float); // (n, V)
    let logprobs = all.gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1);
    let entropy = -(all.exp() * &all).sum_dim_intlist(&[-1i64][..], false, Kind::Float);
    TokenStats { logprobs, entropy }
}

fn head_stats(model: &Model, states: &Tensor, targets: &Tensor, temperature: f64) -> TokenStats {
    let outer = model.outer_weights(false);
    let rows = chunk_rows(model);
    let chunks: Vec<TokenStats> = states
        .split(rows, 0)
        .iter()
        .zip(targets.split(rows, 0))
        .map(|(states, targets)| chunk_stats(model, &outer, states, &targets, temperature))
        .collect();
    let cat = |pick: fn(&TokenStats) -> &Tensor| Tensor::cat(&chunks.iter().map(pick).collect::<Vec<_>>(), 0);
    TokenStats { logprobs: cat(|c| &c.logprobs), entropy: cat(|c| &c.entropy) }
}

/// Back-propagates token gradients through the head, chunk by chunk; adds to the first unit's sum, if there is one, and
/// gives the gradient of the states (R, E).
fn head_backward(
    model: &Model,
    states: &Tensor,
    packed: &Packed,
    temperature: f64,
    token_grads: &TokenGrads,
    mut sum: Option<&mut Tensor>,
) -> Tensor {
    let rows = chunk_rows(model);
    let mut grad_states = Vec::new();
    for start in (0..states.size()[0]).step_by(rows as usize) {
        let n = rows.min(states.size()[0] - start);
        let outer = model.outer_weights(sum.is_some());
        let states = states.narrow(0, start, n).detach().set_requires_grad(true);
        let stats = chunk_stats(model, &outer, &states, &packed.targets.narrow(0, start, n), temperature);
        let mut objective = (stats.logprobs * token_grads.logprobs.narrow(0, start, n)).sum(Kind::Float);
        if let Some(entropy) = &token_grads.entropy {
            objective += (stats.entropy * entropy.narrow(0, start, n)).sum(Kind::Float);
        }
        grad_states.push(backward(model, &outer, &states, &objective, sum.as_deref_mut()));
    }
    Tensor::cat(&grad_states, 0)
}

/// Differentiates an objective of the head: adds the gradient of the final norm and of the head to the first unit's sum,
/// if there is one, and gives that of the states.
fn backward(
    model: &Model,
    outer: &OuterWeights,
    states: &Tensor,
    objective: &Tensor,
    sum: Option<&mut Tensor>,
) -> Tensor {
    let own = if sum.is_some() { outer.head_indices() } else { Vec::new() };
    let mut sources = vec![states];
    sources.extend(own.iter().map(|&index| &outer.tensors()[index]));
    let mut gradients = Tensor::run_backward(&[objective], &sources, false, false);
    if let Some(sum) = sum {
        no_grad(|| {
            for (&index, gradient) in own.iter().zip(&gradients[1..]) {
                let param = &model.layouts[0].params[index];
                let _ = model.layouts[0].view(sum, param).g_add_(gradient);
            }
        });
    }
    gradients.swap_remove(0)
}
