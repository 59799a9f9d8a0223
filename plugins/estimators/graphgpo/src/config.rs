//! The keys of `estimator.config` and their defaults.

use anyhow::{Result, ensure};
use nestor_plugin::Success;
use nestor_plugin::anchor::{Anchor, check_similarity};
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
    /// Factor for each edge between a state and success; published: 0.1 on ALFWorld, 0.2 on WebShop, 0.8 on Sokoban.
    pub gamma: f64,
    /// Compare the distance after a step with that before it.
    pub normalize_distance: bool,
    /// Weight of the step-level advantage.
    pub step_weight: f64,
    /// Weight of the episode-level advantage.
    pub episode_weight: f64,
    /// Test of an episode's success: `flag`, `{return_above: 0}` or `{return_equals: 10}`.
    pub success: Success,
    /// Definition of a state.
    pub anchor: Anchor,
    /// States at least this similar (difflib's ratio, between 0 and 1) are one node of the graph; null: only equal ones.
    pub similarity: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            norm: Norm::Std,
            weighting: Weighting::Row,
            gamma: 0.1,
            normalize_distance: false,
            step_weight: 1.0,
            episode_weight: 1.0,
            success: Success::Flag,
            anchor: Anchor::Observation,
            similarity: None,
        }
    }
}

impl Config {
    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        let gamma = self.gamma;
        ensure!(gamma > 0.0 && gamma <= 1.0, "config key `gamma` must be above 0 and at most 1, not {gamma}");
        check_similarity(self.similarity)
    }
}
