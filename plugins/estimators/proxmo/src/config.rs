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
    /// Compare a step with all steps of its group by the similarity of their anchors, or with those of its state.
    pub soft: bool,
    /// Divide by standard deviations, on both levels, or not; only without `soft`.
    pub norm: Norm,
    /// The scores that the episode part's mean counts.
    pub weighting: Weighting,
    /// Discount of the step returns.
    pub gamma: f64,
    /// Weight of the step level.
    pub step_weight: f64,
    /// Cosines are divided by this number before the softmax.
    pub temperature: f64,
    /// Terms of the tf-idf vectors.
    pub max_terms: usize,
    /// Weigh episodes by the success rate.
    pub modulation: bool,
    /// Power of the success rate.
    pub alpha: f64,
    /// Strength of the weight; published: 0.05 / (sigmoid(1) - 0.5).
    pub beta: f64,
    /// The success of a row and the success rate of a group.
    pub rate: Rate,
    /// Definition of a state.
    pub anchor: Anchor,
    /// Without `soft`: anchors at least this similar (difflib's ratio, between 0 and 1) are one state; null: only equal ones.
    pub similarity: Option<f64>,
}

/// Source of a row's success and of a group's success rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// The environment's flag.
    #[default]
    Flag,
    /// The scores of the rows, cut to between 0 and 1 on average; those above 0.5 are solved.
    Score,
}

impl Default for Config {
    fn default() -> Self {
        let (norm, weighting, rate, anchor, similarity) = Default::default();
        Self {
            soft: true,
            norm,
            weighting,
            gamma: 0.95,
            step_weight: 1.0,
            temperature: 0.1,
            max_terms: 1024,
            modulation: true,
            alpha: 4.0,
            beta: 0.216_395_323_640_791_23,
            rate,
            anchor,
            similarity,
        }
    }
}

impl Config {
    /// Checks the numbers.
    pub fn check(&self) -> Result<()> {
        check_between("gamma", self.gamma, 0.0..=1.0)?;
        ensure!(self.temperature > 0.0, "config key `temperature` must be above 0, not {}", self.temperature);
        check_similarity(self.similarity)
    }
}
