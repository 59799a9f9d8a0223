//! The end of a run: done, stopped by a signal, or failed. A run that ends before its last iteration saves what its newest
//! checkpoint lacks.

use anyhow::Result;

use super::summary::RunState;
use super::{Run, report};
use crate::error::{EnvironmentFailed, InputError, message};
use crate::event::{Event, Status};
use crate::terminal;

impl Run {
    /// Reports a failure to the other ranks and to W&B. After one of an environment the run saves what its newest checkpoint
    /// lacks, as a stopped run does: all ranks fail together then.
    pub fn fail(&mut self, error: &anyhow::Error) {
        let message = message(error);
        if error.is::<EnvironmentFailed>() {
            for line in self.player.take_faults().lines() {
                match self.ranks.comm.rank() {
                    0 => drop(self.meter.tracker.warn(&line)), // the failure itself is the one to report
                    _ => terminal::warn(&format!("warning: {line}")),
                }
            }
            if let Err(error) = self.save_before_failure() {
                terminal::warn(&format!("warning: the run could not be saved: {error:#}"));
            }
        } else if self.ranks.world() == 1
            && let Err(error) = self.finish_save()
        {
            terminal::warn(&format!("warning: the checkpoint under way could not be finished: {error:#}"));
        }
        self.ranks.comm.abort(&message); // first, so that the others do not wait for W&B
        if !error.is::<InputError>() {
            self.keep(); // for its log
        }
        let _ = self.summarize(RunState::Failed); // the error itself is the one to report
        self.meter.tracker.wandb.failed(&message);
        self.meter.tracker.close(1);
        let _ = self.finish_mirror(); // only its lines can fail
    }

    /// Ends the run and reports how. A stopped run saves what its newest checkpoint lacks.
    pub fn close(mut self) -> Result<Status> {
        self.finish().inspect_err(|_| {
            let _ = self.summarize(RunState::Failed); // the error itself is the one to report
        })
    }

    fn finish(&mut self) -> Result<Status> {
        self.keep();
        if self.save_unfinished()? {
            return self.end(Status::Stopped);
        }
        if let Some(line) = report::success(self.meter.tracker.evaluations(), self.ledger.state.comparable_from) {
            self.meter.tracker.log(&line)?;
        }
        self.end(Status::Done)
    }

    /// Saves the progress of a run that is not done, unless its newest checkpoint holds it. Returns false if the run is done.
    fn save_unfinished(&mut self) -> Result<bool> {
        let unfinished = self.ledger.warm_start.is_some() || self.next_iteration().is_some();
        if unfinished && self.ledger.saved != Some(self.ledger.moment()) {
            self.save()?;
        }
        self.finish_save()?;
        Ok(unfinished)
    }

    /// Saves the progress before the failure, and names the checkpoint.
    fn save_before_failure(&mut self) -> Result<()> {
        self.keep();
        self.save_unfinished()?;
        let Some(moment) = self.ledger.saved else { return Ok(()) };
        let (path, dir) = (self.ledger.checkpoints.path(moment), self.dir.display());
        self.meter.tracker.log(&format!("saved {}; resume with --resume --run-dir {dir}", path.display()))
    }

    /// Keeps the run directory. Until then a refused run leaves none behind.
    pub(super) fn keep(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.keep();
        }
    }

    /// Waits until the mirror has what the run wrote.
    fn finish_mirror(&mut self) -> Result<()> {
        let Some(mirror) = self.mirror.take() else { return Ok(()) };
        let _bar = self.ranks.progress.phase("mirror", "");
        mirror.finish(&mut self.meter.tracker)
    }

    fn end(&mut self, status: Status) -> Result<Status> {
        self.meter.tracker.close(if status == Status::Done { 0 } else { 130 });
        self.summarize(if status == Status::Done { RunState::Done } else { RunState::Stopped })?;
        self.finish_mirror()?;
        self.meter.tracker.emit(&Event::End { status, run_dir: &self.dir })?;
        Ok(status)
    }
}
