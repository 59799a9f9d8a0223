//! The part of a run that checkpoints record beside tensors: counters, the draws of tasks, and work under way.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::UpdateReports;
use crate::agent::{TaskDraws, saved_draws};
use crate::checkpoint::{Checkpoints, Moment, Retention, Saving, Unfinished};
use crate::data::{Batch, Episode, PluginFile};
use crate::model::hub::Snapshot;
use crate::policy::Network;
use crate::policy::kl_reward::KlCoefficient;
use crate::recipe::Checkpoint;
use crate::shard::LossScale;
use crate::track::Metrics;
use crate::warm_start::ImitationState;

/// `state.json` of a checkpoint. Counters key the random streams, so they are the streams' state too.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Finished iterations.
    pub iteration: u64,
    #[serde(with = "saved_draws")]
    pub tasks: TaskDraws,
    pub policy: OptimizerCounters,
    pub critic: Option<OptimizerCounters>,
    /// Coefficient of KL in the reward.
    pub kl_coefficient: Option<KlCoefficient>,
    /// Fingerprint of the weights that LoRA's adapters belong to.
    pub start_model: Option<String>,
    /// The files of environment and estimator.
    #[serde(default)]
    pub plugins: Vec<PluginFile>,
    /// The models that came from the Hugging Face cache.
    #[serde(default)]
    pub models: Vec<Snapshot>,
    /// The first iteration whose evaluation compares with the last one's: an earlier one had other tasks.
    #[serde(default)]
    pub comparable_from: u64,
    /// The best evaluation after an iteration or a warm start.
    #[serde(default)]
    pub best: Option<Best>,
    #[serde(default)]
    pub totals: Totals,
    /// The last iteration with a sign of divergence.
    #[serde(default)]
    pub diverged: Option<u64>,
    /// A network skipped all optimizer steps of the last iteration.
    #[serde(default)]
    pub stuck: bool,
    /// The newest checkpoint, if nothing speaks against its weights yet.
    #[serde(default)]
    pub candidate: Option<Candidate>,
    /// The newest checkpoint whose weights have given finite gradients.
    #[serde(default)]
    pub good: Option<Moment>,
}

/// A checkpoint whose weights must still prove to be sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    moment: Moment,
    /// Optimizer steps of policy and critic.
    steps: [u64; 2],
}

/// The work of all iterations so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Episodes played for training.
    pub episodes: u64,
    /// Tokens generated in them, over all ranks.
    pub tokens: u64,
}

/// An evaluation that no other one surpassed. The first of several with the same success remains.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub iteration: u64,
    /// Share of won episodes.
    pub success: f64,
}

impl State {
    /// The state before the first iteration.
    pub fn new(tasks: TaskDraws, start_model: Option<String>) -> Self {
        Self {
            iteration: 0,
            tasks,
            policy: OptimizerCounters::default(),
            critic: None,
            kl_coefficient: None,
            start_model,
            plugins: Vec::new(),
            models: Vec::new(),
            comparable_from: 0,
            best: None,
            totals: Totals::default(),
            diverged: None,
            stuck: false,
            candidate: None,
            good: None,
        }
    }

    /// The last good checkpoint: optimizer steps were made from its weights, or from those after it.
    pub fn last_good(&self, policy: &Network, critic: Option<&Network>) -> Option<Moment> {
        let proven = self.candidate.filter(|candidate| {
            let made = |network: &Network, before: u64| network.optimizer.steps > before;
            let networks: Vec<(&Network, u64)> = [Some(policy), critic]
                .into_iter()
                .zip(candidate.steps)
                .filter_map(|(network, before)| Some((network?, before)))
                .collect();
            let sound = |network: &Network, before: u64| made(network, before) || network.skipped_in_a_row == 0;
            networks.iter().any(|&(n, before)| made(n, before)) && networks.iter().all(|&(n, before)| sound(n, before))
        });
        proven.map(|candidate| candidate.moment).or(self.good)
    }

    /// Notes the checkpoint that is about to be saved; `sound` if nothing speaks against its weights.
    pub fn saving(&mut self, moment: Moment, networks: (&Network, Option<&Network>), sound: bool) {
        let (policy, critic) = networks;
        self.good = self.last_good(policy, critic);
        let steps = [policy.optimizer.steps, critic.map_or(0, |critic| critic.optimizer.steps)];
        self.candidate = sound.then_some(Candidate { moment, steps });
    }

    /// Records an evaluation after an iteration, or after a warm start as iteration 0; true if it is the best one.
    pub fn evaluated(&mut self, iteration: u64, success: f64) -> bool {
        let best = self.best.is_none_or(|best| success > best.success);
        if best {
            self.best = Some(Best { iteration, success });
        }
        best
    }
}

/// Counters of an optimizer, beside the tensors of its state.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct OptimizerCounters {
    optimizer_steps: u64,
    skipped_in_a_row: u32,
    /// In float16.
    #[serde(default)]
    loss_scale: Option<LossScale>,
}

impl OptimizerCounters {
    pub fn of(network: &Network) -> Self {
        let Network { optimizer, skipped_in_a_row, .. } = network;
        Self { optimizer_steps: optimizer.steps, skipped_in_a_row: *skipped_in_a_row, loss_scale: optimizer.loss_scale }
    }

    pub fn restore(self, network: &mut Network) {
        network.optimizer.steps = self.optimizer_steps;
        network.skipped_in_a_row = self.skipped_in_a_row;
        // A run in another type has none, and an older checkpoint either.
        if let (Some(own), Some(saved)) = (&mut network.optimizer.loss_scale, self.loss_scale) {
            *own = saved;
        }
    }
}

/// The cause of a part of a checkpoint that cannot be read.
const OTHER_VERSION: &str = "the checkpoint is of an iteration under way and of another version of Nestor; resume with that version, or \
                             from an older checkpoint";

/// An iteration from the start of its update on. A checkpoint holds it; the resumed run finishes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartedUpdate {
    pub episodes: Vec<Episode>,
    /// The episodes, packed and scored.
    pub batch: Batch,
    /// The failed episodes, packed, with the advantages of the update.
    pub failed: Batch,
    /// Reports of the finished mini-batches.
    pub reports: UpdateReports,
}

impl StartedUpdate {
    /// True if a network skipped all of its optimizer steps.
    pub fn is_stuck(&self) -> bool {
        let UpdateReports { policy, critic } = &self.reports;
        policy.as_ref().is_some_and(|p| !p.each.is_empty() && p.steps() == 0)
            || critic.as_ref().is_some_and(|c| !c.each.is_empty() && c.skipped() == c.each.len())
    }

    /// Finished optimizer steps.
    pub fn steps(&self) -> usize {
        let UpdateReports { policy, critic } = &self.reports;
        policy.as_ref().map_or(0, |p| p.each.len()) + critic.as_ref().map_or(0, |c| c.each.len())
    }
}

/// The row of metrics under way, so that a resumed run writes all of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OpenRow {
    pub metrics: Metrics,
    /// Seconds of each phase.
    pub seconds: Vec<(String, f64)>,
    /// FLOPs of all ranks.
    pub flops: f64,
}

/// Work that a checkpoint found unfinished.
#[derive(Debug, Default)]
pub struct UnderWay {
    pub warm_start: Option<ImitationState>,
    pub update: Option<StartedUpdate>,
    pub row: OpenRow,
}

impl UnderWay {
    /// Reads it back from a checkpoint.
    pub fn of(unfinished: Option<Unfinished>) -> Result<Self> {
        Ok(match unfinished {
            None => Self::default(),
            Some(Unfinished::WarmStart(bytes)) => {
                let (state, row) = postcard::from_bytes(&bytes).context(OTHER_VERSION)?;
                Self { warm_start: Some(state), row, ..Self::default() }
            }
            Some(Unfinished::Update(bytes)) => {
                let (update, row) = postcard::from_bytes(&bytes).context(OTHER_VERSION)?;
                Self { update: Some(update), row, ..Self::default() }
            }
        })
    }
}

/// Progress of a run, and the checkpoints that record it.
pub struct Ledger {
    pub state: State,
    /// The draws after the iteration under way; become `state.tasks` when its update begins.
    pub tasks: TaskDraws,
    /// Coefficient of KL in the reward after the iteration under way; becomes the state's with the draws.
    pub kl_coefficient: Option<KlCoefficient>,
    /// The totals after the iteration under way; become the state's with the draws.
    pub totals: Totals,
    /// The estimator's state that checkpoints record, at rank 0; none where the estimator has none.
    pub estimator: Option<Vec<u8>>,
    /// The estimator's state after the iteration under way; becomes the recorded one with the draws.
    pub scored: Option<Vec<u8>>,
    /// Until the first evaluation is recorded.
    pub warm_start: Option<ImitationState>,
    /// The next iteration, once its update has begun.
    pub update: Option<StartedUpdate>,
    /// The newest checkpoint, which may be under way.
    pub saved: Option<Moment>,
    /// The checkpoint that a thread writes.
    pub saving: Option<Saving>,
    pub checkpoints: Checkpoints,
    pub clock: SaveClock,
}

impl Ledger {
    /// The moment that a checkpoint would record now.
    pub fn moment(&self) -> Moment {
        let iteration = self.state.iteration;
        match (&self.warm_start, &self.update) {
            (Some(warm_start), _) => Moment::warm_start(warm_start.steps),
            (None, Some(update)) => Moment::update(iteration, update.steps() as u64),
            (None, None) => Moment::iteration(iteration),
        }
    }

    /// The work under way with its row of metrics, as a checkpoint holds them.
    pub fn unfinished(&self, row: &OpenRow) -> Result<Option<Unfinished>> {
        Ok(match (&self.warm_start, &self.update) {
            (Some(warm_start), _) => Some(Unfinished::WarmStart(postcard::to_stdvec(&(warm_start, row))?)),
            (None, Some(update)) => Some(Unfinished::Update(postcard::to_stdvec(&(update, row))?)),
            (None, None) => None,
        })
    }

    /// The checkpoints to keep.
    pub fn retention(&self, keep: usize) -> Retention {
        // A sound checkpoint needs no older one.
        let good = self.state.good.filter(|_| self.state.candidate.is_none());
        Retention { keep, best: self.state.best.map(|best| Moment::iteration(best.iteration)), good }
    }
}

/// The time since the last checkpoint, at rank 0.
#[derive(Debug, Clone, Copy)]
pub struct SaveClock {
    /// None at other ranks, and where the recipe saves by iterations alone.
    every: Option<Duration>,
    since: Instant,
}

impl SaveClock {
    /// Starts at zero.
    pub fn start(settings: &Checkpoint, rank: usize) -> Self {
        let asked = rank == 0 && settings.every_minutes > 0.0;
        Self { every: asked.then(|| Duration::from_secs_f64(60.0 * settings.every_minutes)), since: Instant::now() }
    }

    /// True if it is time for a checkpoint.
    pub fn is_due(&self) -> bool {
        self.every.is_some_and(|every| self.since.elapsed() >= every)
    }

    /// Starts anew after a checkpoint.
    pub fn reset(&mut self) {
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_evaluations_is_the_best() {
        let mut state = State::new(TaskDraws::new(&3.into(), 1), None);
        let seen: Vec<bool> = [(2, 0.25), (4, 0.5), (6, 0.5), (8, 0.25), (9, 0.75)]
            .map(|(i, success)| state.evaluated(i, success))
            .into();
        assert_eq!(seen, [true, true, false, false, true]);
        assert_eq!(state.best, Some(Best { iteration: 9, success: 0.75 }));
    }

    #[test]
    fn only_rank_0_has_a_clock_and_zero_switches_it_off() {
        let due = |every_minutes, rank| {
            SaveClock::start(&Checkpoint { every_minutes, ..Checkpoint::default() }, rank).is_due()
        };
        assert_eq!([due(1e-12, 0), due(1e-12, 1), due(0.0, 0), due(20.0, 0)], [true, false, false, false]);
    }
}
