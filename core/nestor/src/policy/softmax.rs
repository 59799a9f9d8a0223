//! Log-probs and entropies of tokens from their logits, and the gradient with respect to these in the same memory.
//!
//! With z the logits over the temperature τ, p their softmax, x the log-prob of the target, H the entropy:
//!
//! ```text
//! dx / dlogit_j = ([j is the target] - p_j) / τ
//! dH / dlogit_j = -p_j (log p_j + H) / τ
//! ```

use nestor_torch::fused;
use tch::{Kind, Tensor};

use super::head::TokenGrads;

/// Logit entries that are computed in float32 at once where no fused operation does it: 128 MiB a copy.
pub const PIECE_ELEMENTS: i64 = 1 << 25;

/// Statistics of logits (n, V), and what their gradient needs.
#[derive(Debug)]
pub enum Softmax {
    /// On a CPU, one pass over the logits.
    Fused(fused::Softmax),
    /// On any device.
    Composite(Composite),
}

/// Statistics by libtorch's own operations.
#[derive(Debug)]
pub struct Composite {
    logprobs: Tensor,
    entropy: Tensor,
    /// Log of the sum of exp(logits / temperature), (n, 1).
    log_sum: Tensor,
    /// (n, 1).
    targets: Tensor,
    temperature: f64,
}

impl Softmax {
    /// Of logits (n, V) and targets (n).
    pub fn new(logits: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        if fused::takes(logits) {
            Self::Fused(fused::Softmax::new(logits, targets, temperature))
        } else {
            Self::Composite(Composite::new(logits, targets, temperature))
        }
    }

    /// Log-probs of the targets, float32 (n).
    pub fn logprobs(&self) -> Tensor {
        match self {
            Self::Fused(fused) => fused.logprobs.shallow_clone(),
            Self::Composite(composite) => composite.logprobs.shallow_clone(),
        }
    }

    /// Entropies, float32 (n).
    pub fn entropy(&self) -> Tensor {
        match self {
            Self::Fused(fused) => fused.entropy(),
            Self::Composite(composite) => composite.entropy.shallow_clone(),
        }
    }

    /// Turns the logits, in place, into the loss's gradient with respect to them.
    pub fn backward(&self, logits: &mut Tensor, grads: &TokenGrads) {
        match self {
            Self::Fused(fused) => fused.backward(logits, &grads.logprobs, grads.entropy.as_ref()),
            Self::Composite(composite) => composite.backward(logits, grads),
        }
    }
}

impl Composite {
    /// Of logits (n, V) and targets (n).
    pub fn new(logits: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        let targets = targets.unsqueeze(-1);
        let (mut logprobs, mut entropy, mut log_sum) = (Vec::new(), Vec::new(), Vec::new());
        for (start, n) in pieces(logits) {
            let z = logits.narrow(0, start, n).to_kind(Kind::Float) / temperature;
            let sum = z.logsumexp(&[-1i64][..], true);
            let all = z - &sum; // log-probs of the whole vocabulary
            logprobs.push(all.gather(-1, &targets.narrow(0, start, n), false).squeeze_dim(-1));
            entropy.push(-(all.exp() * &all).sum_dim_intlist(&[-1i64][..], false, Kind::Float));
            log_sum.push(sum);
        }
        let cat = |parts: Vec<Tensor>| Tensor::cat(&parts, 0);
        Self { logprobs: cat(logprobs), entropy: cat(entropy), log_sum: cat(log_sum), targets, temperature }
    }

    fn backward(&self, logits: &mut Tensor, grads: &TokenGrads) {
        for (start, n) in pieces(logits) {
            let column = |x: &Tensor| x.narrow(0, start, n).unsqueeze(-1);
            let mut piece = logits.narrow(0, start, n);
            let all = piece.to_kind(Kind::Float) / self.temperature - self.log_sum.narrow(0, start, n);
            let by_logprob = column(&grads.logprobs);
            let mut gradient = all.exp() * -&by_logprob;
            if let Some(by_entropy) = &grads.entropy {
                gradient -= all.exp() * (all + column(&self.entropy)) * column(by_entropy);
            }
            let gradient = gradient.scatter_add(-1, &self.targets.narrow(0, start, n), &by_logprob) / self.temperature;
            piece.copy_(&gradient);
        }
    }
}

/// First row and number of rows of pieces of logits that bound the float32 memory; one empty piece where there is none.
fn pieces(logits: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let (rows, vocabulary) = logits.size2().unwrap_or_else(|_| unreachable!("logits have two dimensions"));
    let step = (PIECE_ELEMENTS / vocabulary).max(1);
    (0..rows.max(1)).step_by(step as usize).map(move |start| (start, step.min(rows - start)))
}
