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
    /// Factor for each edge between a state and success; the notes have 0.1 on ALFWorld and 0.2 on WebShop.
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
        Self {
            norm: Norm::Std,
            weighting: Weighting::Row,
            gamma: 0.1,
            step_weight: 1.0,
            episode_weight: 1.0,
            reference: true,
            success: Success::Flag,
            anchor: Anchor::Observation,
        }
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
