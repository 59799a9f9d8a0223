//! The keys of `estimator.config` and their defaults.

use anyhow::{Result, ensure};
use nestor_plugin::Success;
use nestor_plugin::anchor::Anchor;
use nestor_plugin::stats::{Norm, Weighting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Divide by standard deviations, on both levels, or not.
    pub norm: Norm,
    /// The scores that the episode part's mean and standard deviation count.
    pub weighting: Weighting,
    /// Factor for each edge between a state and success; the notes give 0.1 on ALFWorld and 0.2 on WebShop.
    pub gamma: f64,
    /// Weight of the step-level advantage.
    pub step_weight: f64,
    /// Weight of the episode-level advantage.
    pub episode_weight: f64,
    /// Compare scores also with those of the task's last visit.
    pub reference: bool,
    /// Test of an episode's success: `flag`, `{return_above: 0}` or `{return_equals: 10}`.
    pub success: Success,
    /// Definition of a state.
    pub anchor: Anchor,
}

impl Default for Config {
    fn default() -> Self {
        let (norm, weighting, success, anchor) = Default::default();
        let (gamma, step_weight, episode_weight) = (0.1, 1.0, 1.0);
        Self { norm, weighting, gamma, step_weight, episode_weight, reference: true, success, anchor }
    }
}

impl Config {
    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        let gamma = self.gamma;
        ensure!(gamma > 0.0 && gamma <= 1.0, "config key `gamma` must be above 0 and at most 1, not {gamma}");
        Ok(())
    }
}
