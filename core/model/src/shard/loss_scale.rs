//! The loss scale of float16.
//!
//! Gradients of activations below 6e-8 vanish in float16, and above 65,504 they overflow. The loss is therefore multiplied by
//! a scale before the backward pass, and the float32 gradient sums are divided by it. After an overflow the step is skipped
//! and the scale halves; after [`GROWTH_INTERVAL`] good steps in a row it doubles. P. Micikevicius et al., "Mixed Precision
//! Training", arXiv 1710.03740; the constants are those of `torch.amp.GradScaler`.

use serde::{Deserialize, Serialize};
use tch::Kind;

const GROWTH_INTERVAL: u32 = 2_000;
/// A scale that helps nobody: below it the gradients themselves are not finite.
const LEAST: f64 = 1.0;

/// A loss scale and the good steps since it last changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    pub factor: f64,
    good_steps: u32,
}

impl LossScale {
    /// The loss scale of a network that computes in this type: none but for float16.
    pub fn of(kind: Kind, factor: f64) -> Option<Self> {
        (kind == Kind::Half).then_some(Self { factor, good_steps: 0 })
    }

    /// Returns true if the scale can still be lowered.
    pub fn can_fall(self) -> bool {
        self.factor > LEAST
    }

    /// After a step whose gradient was not finite.
    pub fn overflowed(&mut self) {
        *self = Self { factor: (self.factor / 2.0).max(LEAST), good_steps: 0 };
    }

    /// After a good step.
    pub fn succeeded(&mut self) {
        self.good_steps += 1;
        if self.good_steps == GROWTH_INTERVAL {
            *self = Self { factor: self.factor * 2.0, good_steps: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `torch.amp.GradScaler(init_scale=8.0)` after the same steps, PyTorch 2.11.
    #[test]
    fn the_scale_follows_torchs() {
        let mut scale = LossScale::of(Kind::Half, 8.0).expect("float16 has a scale");
        scale.overflowed();
        assert_eq!(scale.factor, 4.0);
        (0..1_999).for_each(|_| scale.succeeded());
        assert_eq!(scale.factor, 4.0);
        scale.succeeded();
        assert_eq!(scale.factor, 8.0);
        (0..1_999).for_each(|_| scale.succeeded());
        scale.overflowed();
        (0..1_999).for_each(|_| scale.succeeded());
        assert_eq!(scale.factor, 4.0, "an overflow begins the count again");
        (0..9).for_each(|_| scale.overflowed());
        assert_eq!((scale.factor, scale.can_fall()), (1.0, false));
        assert_eq!(LossScale::of(Kind::BFloat16, 8.0), None);
    }
}
