//! The part of a run that checkpoints record beside tensors: counters, the task cursor, and an interrupted update.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::UpdateReports;
use crate::agent::TaskCursor;
use crate::checkpoint::{Checkpoints, SerializedUpdate};
use crate::data::{Batch, Episode, PluginFile};
use crate::policy::Network;
use crate::policy::kl_reward::KlCoefficient;
use crate::shard::LossScale;
use crate::track::Metrics;

/// `state.json` of a checkpoint. Counters key the random streams, so they are the streams' state too.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Finished iterations.
    pub iteration: u64,
    pub tasks: TaskCursor,
    pub policy: OptimizerCounters,
    pub critic: Option<OptimizerCounters>,
    /// Coefficient of KL in the reward.
    pub kl_coefficient: Option<KlCoefficient>,
    /// Fingerprint of the weights that LoRA's adapters belong to.
    pub start_model: Option<String>,
    /// The files of environment and estimator.
    #[serde(default)]
    pub plugins: Vec<PluginFile>,
    /// The first iteration whose evaluation compares with the last one's: an earlier one had other tasks.
    #[serde(default)]
    pub comparable_from: u64,
}

impl State {
    /// The state before the first iteration.
    pub fn new(tasks: TaskCursor, start_model: Option<String>) -> Self {
        Self {
            iteration: 0,
            tasks,
            policy: OptimizerCounters::default(),
            critic: None,
            kl_coefficient: None,
            start_model,
            plugins: Vec::new(),
            comparable_from: 0,
        }
    }
}

/// State of an optimiser beside its moments.
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

/// An iteration whose update a signal interrupted. A checkpoint holds it; the resumed run finishes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InterruptedUpdate {
    pub episodes: Vec<Episode>,
    /// The episodes, packed and scored.
    pub batch: Batch,
    pub metrics: Metrics,
    /// Reports of the finished mini-batches.
    pub reports: UpdateReports,
}

impl InterruptedUpdate {
    /// Finished optimiser steps.
    pub fn steps(&self) -> usize {
        let UpdateReports { policy, critic } = &self.reports;
        policy.as_ref().map_or(0, |p| p.each.len()) + critic.as_ref().map_or(0, |c| c.each.len())
    }

    pub fn serialized(&self) -> Result<SerializedUpdate> {
        Ok(SerializedUpdate { steps: self.steps(), bytes: postcard::to_stdvec(self)? })
    }
}

/// Progress of a run, and the checkpoints that record it.
pub struct Ledger {
    pub state: State,
    /// Task cursor after the iteration under way; becomes `state.tasks` when its update begins.
    pub tasks: TaskCursor,
    /// True once the warm start and the first evaluation are done.
    pub baseline: bool,
    /// The next iteration, where a signal interrupted its update.
    pub interrupted: Option<InterruptedUpdate>,
    /// [`Ledger::progress`] of the newest checkpoint.
    pub saved: Option<(u64, usize)>,
    pub checkpoints: Checkpoints,
}

impl Ledger {
    /// Finished iterations, and finished optimiser steps of the next one.
    pub fn progress(&self) -> (u64, usize) {
        (self.state.iteration, self.interrupted.as_ref().map_or(0, InterruptedUpdate::steps))
    }
}
