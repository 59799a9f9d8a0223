//! The section `rollout.curriculum` of a recipe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Problem;

/// Most groups of a task that the success is a mean of.
const MOST_WINDOW: u32 = 1 << 10;

/// Draws training tasks by the policy's recent success on them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Curriculum {
    /// The measure that weighs a task.
    #[serde(default)]
    pub by: CurriculumMeasure,
    /// Last groups of a task whose mean success counts.
    #[serde(default = "default_window")]
    pub window: u32,
    /// Smallest weight of a task, so that none is lost: greater than 0 and at most 1. A task not yet played has weight 1.
    #[serde(default = "default_floor")]
    pub floor: f64,
}

/// The measure by which a curriculum weighs tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CurriculumMeasure {
    /// The share p of won episodes: a task weighs 4 p (1 - p), most where half of the episodes win.
    #[default]
    Success,
}

impl Curriculum {
    pub(super) fn problem(&self) -> Option<Problem> {
        let Self { by: CurriculumMeasure::Success, window, floor } = *self;
        let problem = |key: &str, message: String| Some((format!("rollout.curriculum.{key}"), message));
        if !(1..=MOST_WINDOW).contains(&window) {
            return problem("window", format!("must be from 1 to {MOST_WINDOW}, but is {window}"));
        }
        if !(floor > 0.0 && floor <= 1.0) {
            return problem("floor", format!("must be greater than 0 and at most 1, but is {floor}"));
        }
        None
    }
}

fn default_window() -> u32 {
    4
}
fn default_floor() -> f64 {
    0.1
}
