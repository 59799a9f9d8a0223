//! The time of a whole run: warm start, iterations and evaluations.

use serde::Serialize;

use super::knobs::Knobs;
use super::planner::{Fit, Planner};
use super::workload::PlannedWork;
use crate::recipe::EvalTasks;

/// Estimated seconds of a run, without its start and its checkpoints.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct WholeRun {
    pub iterations: u64,
    /// Seconds of all iterations.
    pub training: f64,
    pub warm_start: f64,
    /// Number of evaluations: before and after training, and those between.
    pub evaluations: u64,
    /// Seconds of all evaluations; `None` if the number of their tasks is not known here.
    pub evaluation: Option<f64>,
    /// Seconds of the run.
    pub seconds: f64,
    /// Hours of all ranks' devices; ranks on one CPU share it.
    pub device_hours: f64,
}

impl Planner {
    /// Plans a run whose iterations take `seconds` each. `tasks` is the number of an evaluation's tasks, where the checks
    /// counted them.
    pub fn whole(&self, fit: &Fit, knobs: &Knobs, seconds: f64, tasks: Option<u64>) -> WholeRun {
        let recipe = &self.recipe;
        let setup = self.time(fit, knobs);
        let tasks = tasks.or(match recipe.eval.tasks {
            EvalTasks::Panel(tasks) => Some(u64::from(tasks)),
            EvalTasks::All => None,
            EvalTasks::None => Some(0),
        });
        let between = recipe.iterations.saturating_sub(1).checked_div(recipe.eval.every).unwrap_or(0);
        let evaluations = if recipe.eval.evaluates() { 2 + between } else { 0 };
        let evaluation = tasks.map(|tasks| {
            let mut setup = setup;
            setup.workload = PlannedWork { tasks, group_size: 1, ..setup.workload };
            if evaluations == 0 { 0.0 } else { evaluations as f64 * setup.generation().seconds() }
        });
        let warm_start = recipe
            .warm_start
            .as_ref()
            .map_or(0.0, |warm| warm.steps.unwrap_or(0) as f64 * setup.optimizer_step(warm.batch as f64));
        let training = recipe.iterations as f64 * seconds;
        let seconds = training + warm_start + evaluation.unwrap_or(0.0);
        let devices = fit.ranks as f64 / self.sharing(fit.ranks) as f64;
        let device_hours = devices * seconds / 3600.0;
        WholeRun { iterations: recipe.iterations, training, warm_start, evaluations, evaluation, seconds, device_hours }
    }
}
