//! Evaluation on a recipe's fixed task list, during training and by `nestor eval`.

mod command;
mod endpoint;
mod evaluated;
mod panel;
mod pass_at;
mod report;
mod success;
mod table;
mod targets;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::agent::{Count, PlaySettings, Player, eval_plan};
use crate::data::{Episode, Step};
use crate::model::Model;
use crate::ranks::{Comm, exchange};
use crate::recipe::Eval;
use crate::tokenizer::Ends;

pub use command::eval;
pub use evaluated::EvaluatedModel;
pub use panel::Panel;
pub use pass_at::pass_at;
pub use report::EvalReport;
pub use success::{SuccessRate, interval, wilson};
pub use targets::{EndpointArgs, EvalArgs};

/// Results of the episodes of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// A failed episode counts as not won.
    pub success: SuccessRate,
    /// Episodes that the environment failed in.
    pub failed: usize,
    /// The others.
    pub finished: usize,
    /// By environment, where the recipe lists them, and by the environment's name for the kind of task, where it has kinds.
    pub by_type: BTreeMap<String, SuccessRate>,
    /// Mean undiscounted return by environment, where the recipe lists them, of the episodes that did not fail.
    pub return_of: BTreeMap<String, f64>,
    /// Mean undiscounted return of the episodes that did not fail.
    pub mean_return: f64,
    /// Mean number of their steps.
    pub mean_length: f64,
    /// Share of steps whose response the environment could read.
    pub valid_actions: f64,
    /// Share of steps whose action the episode took before in the same state.
    pub repeated_actions: f64,
    /// Share of responses that were cut at `rollout.max_response_tokens`.
    pub cut_responses: f64,
    /// Mean number of tokens of a response.
    pub mean_response: f64,
    /// The environment's own numbers, by name: the mean over the episodes that have it.
    pub environment: BTreeMap<String, f64>,
}

impl Evaluation {
    /// Evaluates episodes, one group of samples per task. `ends` says which responses were cut.
    pub fn of(episodes: &[Episode], ends: &Ends) -> Self {
        let (mut all, mut by_type) = (Vec::<Vec<Count>>::new(), BTreeMap::<String, Vec<Count>>::new());
        let mut environment = None;
        for samples in episodes.chunk_by(|a, b| a.group == b.group) {
            let count = Count { won: samples.iter().filter(|episode| episode.won).count(), played: samples.len() };
            let own = samples[0].environment.as_ref().map(|environment| &*environment.name);
            if all.is_empty() || own != environment {
                all.push(Vec::new()); // one environment is played after the other
                environment = own;
            }
            all.last_mut().into_iter().for_each(|tasks| tasks.push(count));
            // A failed episode may not know its kind.
            let kinds = samples.iter().map(Episode::kinds).max_by_key(Vec::len).unwrap_or_default();
            for kind in kinds {
                by_type.entry(kind).or_default().push(count);
            }
        }
        let finished = || episodes.iter().filter(|episode| !episode.failed());
        let n = finished().count().max(1) as f64;
        let steps = || finished().flat_map(|episode| &episode.steps);
        let share = |holds: &dyn Fn(&Step) -> bool| {
            steps().filter(|step| holds(step)).count() as f64 / steps().count().max(1) as f64
        };
        let repeated: usize = finished().map(Episode::repeated_steps).sum();
        Self {
            failed: episodes.len() - finished().count(),
            finished: finished().count(),
            valid_actions: share(&|step| step.valid),
            repeated_actions: repeated as f64 / steps().count().max(1) as f64,
            cut_responses: share(&|step| ends.end(&step.response).is_none()),
            mean_response: steps().map(|step| step.response.len() as f64).sum::<f64>() / steps().count().max(1) as f64,
            success: SuccessRate::over(&all),
            return_of: returns_by_environment(episodes),
            by_type: by_type.into_iter().map(|(kind, tasks)| (kind, SuccessRate::of(&tasks))).collect(),
            mean_return: finished().map(Episode::episode_return).sum::<f64>() / n,
            mean_length: finished().map(|e| e.steps.len() as f64).sum::<f64>() / n,
            environment: environment_means(episodes),
        }
    }

    /// Says how failed episodes count; none where none failed.
    pub fn failure_warning(&self) -> Option<String> {
        let (failed, played) = (self.failed, self.success.count.played);
        (failed > 0).then(|| {
            format!("the environment failed in {failed} of {played} evaluation episodes; they count as not won")
        })
    }
}

/// The mean returns of the episodes that did not fail, by environment, where the recipe lists them.
pub fn returns_by_environment(episodes: &[Episode]) -> BTreeMap<String, f64> {
    let mut returns: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for episode in episodes.iter().filter(|episode| !episode.failed()) {
        if let Some(environment) = &episode.environment {
            returns.entry(&environment.name).or_default().push(episode.episode_return());
        }
    }
    let mean = |(name, all): (&str, Vec<f64>)| (name.to_owned(), all.iter().sum::<f64>() / all.len() as f64);
    returns.into_iter().map(mean).collect()
}

/// The means of the environment's own numbers over the episodes that have them and did not fail.
pub fn environment_means(episodes: &[Episode]) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (name, value) in episodes.iter().filter(|episode| !episode.failed()).flat_map(|episode| &episode.metrics) {
        let (sum, count) = sums.entry(name).or_default();
        (*sum, *count) = (*sum + value, *count + 1.0);
    }
    sums.into_iter().map(|(name, (sum, count))| (name.to_owned(), sum / count)).collect()
}

/// Plays the panel. Every rank gets all episodes, those of a task side by side. Tasks, seeds and noise come from
/// streams of their own, so that training is not affected.
pub fn play(comm: &dyn Comm, player: &mut Player, model: &Model, eval: &Eval, seed: u64) -> Result<Vec<Episode>> {
    // A signal may stop the plugin's call at one rank: then all stop.
    let counts = player.environments().count_eval_tasks(eval);
    let counts: Vec<Vec<u64>> = exchange(comm, counts.map(|counts| counts.each().to_vec()))?;
    let plan =
        eval_plan(&counts[comm.rank()].iter().copied().collect(), eval.tasks, eval.samples, eval.panel_seed(seed));
    let episodes = player.play_among(comm, model, &plan, &PlaySettings::eval(eval)).context("evaluating")?;
    player.take_counters();
    Ok(episodes)
}
