//! The keys of `estimator.config` and their defaults.

use anyhow::Result;
use nestor_plugin::anchor::{Anchor, check_similarity};
use nestor_plugin::check_between;
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
    /// Discount of the step returns.
    pub gamma: f64,
    /// Weight of the step level, before that of each state.
    pub step_weight: f64,
    /// Definition of a state.
    pub anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    pub similarity: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            norm: Norm::Std,
            weighting: Weighting::Row,
            gamma: 0.95,
            step_weight: 1.0,
            anchor: Anchor::Observation,
            similarity: None,
        }
    }
}

impl Config {
    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        check_similarity(self.similarity)
    }
}
