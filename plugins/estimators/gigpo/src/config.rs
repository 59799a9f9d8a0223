//! The keys of `estimator.config` and their defaults.

use anyhow::{Result, ensure};
use nestor_plugin::anchor::{Anchor, check_similarity};
use nestor_plugin::check_between;
use nestor_plugin::stats::{Norm, Weighting};
use schemars::JsonSchema;
use serde::Deserialize;

/// The keys of `estimator.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// The published runs.
#[schemars(example = nestor_plugin::serde_json::json!({"norm": "std", "step_weight": 1.0, "gamma": 0.95}))]
pub struct Config {
    /// Divide by standard deviations, on both levels, or not.
    #[serde(default = "no_norm")]
    pub norm: Norm,
    /// The scores that a group's mean and standard deviation count.
    #[serde(default)]
    pub weighting: Weighting,
    /// Weight of the episode-level advantage; 0 leaves it out.
    #[serde(default = "one")]
    pub episode_weight: f64,
    /// Weight of the step-level advantage; 0 leaves it out.
    #[serde(default = "one")]
    pub step_weight: f64,
    /// Discount of the step returns.
    #[serde(default = "default_gamma")]
    pub gamma: f64,
    /// Definition of a state.
    #[serde(default)]
    pub anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    #[serde(default)]
    pub similarity: Option<f64>,
}

fn no_norm() -> Norm {
    Norm::None
}

fn one() -> f64 {
    1.0
}

/// The value of all published GiGPO runs; the reference implementation's bare default is 1.
fn default_gamma() -> f64 {
    0.95
}

impl Config {
    /// Returns the weights of the episode level and of the step level.
    pub fn weights(&self) -> [f64; 2] {
        [self.episode_weight, self.step_weight]
    }

    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        for (key, weight) in ["episode_weight", "step_weight"].into_iter().zip(self.weights()) {
            ensure!(weight.is_finite(), "config key `{key}` must be a finite number, not {weight}");
        }
        check_similarity(self.similarity)
    }
}
