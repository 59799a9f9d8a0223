//! Learning rate over iterations: linear warm-up, then constant or half a cosine.

use std::f64::consts::PI;

use crate::recipe::{Schedule, Update};

/// The learning rate of iteration `i` (from 0) out of `total`. With a warm-up of w iterations, iteration i < w has
/// the share `i / w` of the way from `min_lr_ratio` to 1, as the reference implementation steps its scheduler: the
/// first iteration then runs at the lowest rate.
pub fn learning_rate(update: &Update, i: u64, total: u64) -> f64 {
    let floor = update.min_lr_ratio;
    let share = if i < update.warmup {
        i as f64 / update.warmup as f64
    } else {
        match update.schedule {
            Schedule::Constant => 1.0,
            Schedule::Cosine => {
                let length = total.saturating_sub(update.warmup).max(1);
                let progress = ((i - update.warmup) as f64 / length as f64).min(1.0);
                0.5 * (1.0 + (PI * progress).cos())
            }
        }
    };
    update.lr * (floor + (1.0 - floor) * share)
}
