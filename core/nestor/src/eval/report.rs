//! The report of `nestor eval`: one JSON object, or text with a row per model.

use serde_json::{Map, Value, json};

use super::evaluated::{EvaluatedModel, object};
use super::table::Table;
use crate::recipe::Eval;
use crate::terminal::fold;

/// The evaluations of some models on the same tasks.
#[derive(Debug, Clone)]
pub struct EvalReport {
    pub settings: Eval,
    /// Number of tasks.
    pub tasks: u64,
    /// Seed of tasks, environments and noise.
    pub seed: u64,
    pub models: Vec<EvaluatedModel>,
}

impl EvalReport {
    /// The model with the highest success, the first of equal ones.
    pub fn best(&self) -> usize {
        let rate = |number: &usize| self.models[*number].evaluation.success.rate();
        (0..self.models.len()).rev().max_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap_or(0)
    }

    /// As one JSON object. That of a single model also holds its row's keys.
    pub fn to_json(&self) -> Value {
        let Self { settings, tasks, seed, models } = self;
        let mut report = match &models[..] {
            [only] => only.to_json(),
            _ => Map::new(),
        };
        report.extend(object(json!({
            "split": settings.split,
            "tasks": tasks,
            "samples": settings.samples,
            "temperature": settings.temperature,
            "seed": seed,
            "best": models.get(self.best()).map(|best| &best.model),
            "models": models.iter().map(EvaluatedModel::to_json).collect::<Vec<_>>(),
        })));
        report.into()
    }

    /// As text of at most `width` columns: one row per model. A single model gets lines of its own.
    pub fn text(&self, width: Option<usize>) -> String {
        let Self { settings, tasks, seed, models } = self;
        if let [only] = &models[..] {
            return only.text();
        }
        let samples = if settings.samples > 1 { format!(", {} samples each", settings.samples) } else { String::new() };
        let below = format!(
            "* highest success | {tasks} tasks of split {}{samples}, temperature {}, seed {seed}, equal for all models",
            settings.split, settings.temperature
        );
        let table = Table::of(models, self.best()).text(width);
        format!("{table}\n{}", width.map_or_else(|| below.clone(), |width| fold(&below, width)))
    }
}
