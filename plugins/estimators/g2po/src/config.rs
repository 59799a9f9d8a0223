//! The keys of `estimator.config` and their defaults.

use anyhow::Result;
use nestor_plugin::anchor::{Anchor, check_similarity};
use nestor_plugin::stats::{Norm, Weighting};
use nestor_plugin::{Success, check_between};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `estimator.config`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Divide by standard deviations, in all parts, or not.
    pub norm: Norm,
    /// The scores that the episode part's mean and standard deviation count.
    pub weighting: Weighting,
    /// Weight of the node part and the edge part.
    pub step_weight: f64,
    /// Discount of the returns in a state's value.
    pub value_gamma: f64,
    /// Penalty of an invalid response in the node part.
    pub node_penalty: f64,
    /// Value of the end of a solved episode.
    pub success_reward: f64,
    /// Test of an episode's success: `flag`, `{return_above: 0}` or `{return_equals: 10}`.
    pub success: Success,
    /// Definition of a state.
    pub anchor: Anchor,
    /// Anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    pub similarity: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            norm: Norm::None,
            weighting: Weighting::Row,
            step_weight: 1.0,
            value_gamma: 0.95,
            node_penalty: 0.1,
            success_reward: 10.0,
            success: Success::Flag,
            anchor: Anchor::Observation,
            similarity: None,
        }
    }
}

impl Config {
    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        check_between("value_gamma", self.value_gamma, 0.0..=1.0)?;
        check_similarity(self.similarity)
    }
}
