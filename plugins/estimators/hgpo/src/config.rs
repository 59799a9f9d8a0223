//! The keys of `estimator.config` and their defaults.

use anyhow::{Result, ensure};
use nestor_plugin::anchor::{Anchor, check_similarity};
use nestor_plugin::check_between;
use nestor_plugin::stats::{Norm, Weighting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Divide by standard deviations, on all levels, or not. Those of histories have n.
    pub norm: Norm,
    /// Discount of the step returns.
    pub gamma: f64,
    /// Earlier states that may be compared; the published runs take the length of the prompt's history, 2 or 4.
    pub history: u32,
    /// Power of the weights: 0 weighs all levels equally.
    pub alpha: f64,
    /// Add the episode advantage as a level of its own.
    pub base_group: bool,
    /// The scores that the episode advantage's mean and standard deviation count.
    pub weighting: Weighting,
    /// Definition of a state.
    pub anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    pub similarity: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            norm: Norm::Std,
            gamma: 0.95,
            history: 2,
            alpha: 1.0,
            base_group: false,
            weighting: Weighting::Row,
            anchor: Anchor::Observation,
            similarity: None,
        }
    }
}

impl Config {
    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        ensure!(self.alpha.is_finite(), "config key `alpha` must be a finite number, not {}", self.alpha);
        check_similarity(self.similarity)
    }
}
