//! KL estimates from log-probs of sampled tokens (Schulman, "Approximating KL divergence").

use tch::Tensor;

use crate::recipe::KlKind;

/// Estimates (R) from log-probs x under the policy and y under the reference.
pub fn kl(kind: KlKind, x: &Tensor, y: &Tensor) -> Tensor {
    match kind {
        KlKind::K1 => x - y,
        KlKind::Abs => (x - y).abs(),
        KlKind::K2 => (x - y).square() * 0.5,
        KlKind::K3 => {
            let log_ratio = y - x;
            (log_ratio.exp() - &log_ratio - 1.0).clamp(-10.0, 10.0)
        }
    }
}
