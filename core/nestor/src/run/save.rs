//! Saving a run between two of its steps.

use anyhow::Result;

use super::ledger::OptimizerCounters;
use super::mirror::Mirror;
use super::{Learner, Run};
use crate::checkpoint::{Base, Contents, Save};
use crate::policy::Network;
use crate::ranks::exchange;

impl Run {
    /// Saves a checkpoint. With `checkpoint.background` a thread writes it until [`Self::finish_save`].
    pub(super) fn save(&mut self) -> Result<()> {
        self.finish_save()?;
        self.begin_save()?;
        if self.recipe.checkpoint.background { Ok(()) } else { self.finish_save() }
    }

    fn begin_save(&mut self) -> Result<()> {
        let moment = self.ledger.moment();
        let phase = self.meter.phases.running();
        self.meter.phases.start("checkpoint");
        let _bar = self.ranks.progress.phase("checkpoint", "");
        let row = self.meter.open_row();
        let Self { learner: Learner { policy, critic, .. }, ledger, .. } = self;
        // The critic is made after the warm start.
        let critic = critic.as_ref().filter(|_| ledger.warm_start.is_none());
        let networks = [Some(&*policy), critic].into_iter().flatten();
        let own = networks.clone().all(Network::is_finite);
        let finite = exchange(&*self.ranks.comm, Ok(own))?.iter().all(|finite| *finite);
        let skips = networks.clone().any(|network| network.skipped_in_a_row > 0);
        let sound = finite && !skips && !self.meter.alarms.is_diverging(ledger.state.iteration);
        ledger.state.saving(moment, (policy, critic), sound);
        ledger.state.policy = OptimizerCounters::of(policy);
        ledger.state.critic = critic.map(OptimizerCounters::of);
        let estimator = ledger.estimator.as_deref();
        let base = ledger.state.start_model.as_ref().map(|sum| Base::new(&self.model_files, self.recipe.dtype, sum));
        let contents = Contents {
            estimator,
            base: base.transpose()?,
            ..Contents::new(policy, critic, &self.model_files, ledger.unfinished(&row)?)?
        };
        let (retention, background) =
            (ledger.retention(self.recipe.checkpoint.keep), self.recipe.checkpoint.background);
        let save = Save { moment, contents: &contents, retention, background };
        ledger.saving = Some(ledger.checkpoints.begin(&*self.ranks.comm, save, &ledger.state)?);
        ledger.saved = Some(moment);
        ledger.clock.reset();
        self.meter.phases.start(phase);
        Ok(())
    }

    /// Ends the save under way, if there is one: waits for its files, and lets the checkpoint appear. All ranks call it together.
    pub(super) fn finish_save(&mut self) -> Result<()> {
        let Some(saving) = self.ledger.saving.take() else { return Ok(()) };
        let phase = self.meter.phases.running();
        self.meter.phases.start("checkpoint");
        let _bar = self.ranks.progress.phase("checkpoint", "");
        let path = self.ledger.checkpoints.path(saving.moment());
        self.ledger.checkpoints.end(&*self.ranks.comm, saving)?;
        self.ranks.notice.saved(&path);
        self.mirror.iter().for_each(Mirror::saved);
        self.meter.phases.start(phase);
        Ok(())
    }
}
