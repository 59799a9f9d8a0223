//! The section `update.optimizer` of a recipe: the optimizers by name, and their keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recipe;
use super::check::Problem;

/// The optimizer of the policy, of its critic and of the warm start; `docs/optimizers.md` has the equations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// The update rule.
    pub name: OptimizerName,
    /// AdamW's decay rates of the first and the second moment.
    pub betas: [f64; 2],
    /// AdamW's epsilon, added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of all parameters: each step multiplies them by 1 - `lr` * `weight_decay`.
    pub weight_decay: f64,
}

/// The update rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerName {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { name: OptimizerName::default(), betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 }
    }
}

/// The first value out of range.
pub(super) fn problem(recipe: &Recipe) -> Option<Problem> {
    let optimizer = &recipe.update.optimizer;
    let path = |key: &str| format!("update.optimizer.{key}");
    let range = |key: &str, value: f64, good: bool, wanted: &str| {
        (!good).then(|| (path(key), format!("must be {wanted}, but is {value}")))
    };
    let outside = optimizer.betas.iter().find(|beta| !(0.0..1.0).contains(*beta));
    range("weight_decay", optimizer.weight_decay, optimizer.weight_decay >= 0.0, "0 or more")
        .or_else(|| range("betas", *outside?, false, "from 0 to below 1"))
        .or_else(|| range("eps", optimizer.eps, optimizer.eps > 0.0, "greater than 0"))
}
