//! The keys of `estimator.config` and their defaults.

use anyhow::{Result, ensure};
use nestor_plugin::stats::{Norm, Weighting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Divide episode advantages by the group's standard deviation, or not.
    pub norm: Norm,
    /// The scores that the episode advantage's mean and standard deviation count.
    pub weighting: Weighting,
    /// Strength with which the entropy of a step scales its advantage.
    pub k: f64,
    /// Strength with which the entropy of the next step lowers the bonus.
    pub k_next: f64,
    /// The bonus for a next step of the lowest entropy.
    pub bonus: f64,
}

impl Default for Config {
    fn default() -> Self {
        let (norm, weighting) = Default::default();
        Self { norm, weighting, k: 1.0, k_next: 1.0, bonus: 0.05 }
    }
}

impl Config {
    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        let all = [self.k, self.k_next, self.bonus];
        ensure!(
            all.iter().all(|key| key.is_finite()),
            "config keys `k`, `k_next` and `bonus` must be finite, not {all:?}"
        );
        Ok(())
    }
}
