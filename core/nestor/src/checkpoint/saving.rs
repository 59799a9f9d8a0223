//! A save: begun between two steps of the run, written at once or by a thread beside the next iteration, and ended by all ranks
//! together.

use std::thread::{Builder, JoinHandle};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use super::atomic_dir::{CopiedSet, Staged, Sums, TensorSet};
use super::{Checkpoints, Contents, Moment, Retention};
use crate::ranks::{Comm, agree};

/// A checkpoint to write.
#[derive(Debug, Clone, Copy)]
pub struct Save<'a> {
    pub moment: Moment,
    pub contents: &'a Contents<'a>,
    pub retention: Retention,
    /// A thread writes it.
    pub background: bool,
}

/// A checkpoint that is being written. Until it ends the earlier ones remain.
#[derive(Debug)]
pub struct Saving {
    moment: Moment,
    retention: Retention,
    staged: Staged,
    /// The files of this rank.
    files: Files,
}

#[derive(Debug)]
enum Files {
    Written(Result<Sums>),
    /// A thread writes them from a copy.
    UnderWay(JoinHandle<Result<Sums>>),
}

impl Saving {
    pub fn moment(&self) -> Moment {
        self.moment
    }
}

impl Checkpoints {
    /// Saves a checkpoint beside the run's `state`, links it, and removes those that its retention does not keep.
    pub fn save(&self, comm: &dyn Comm, save: Save, state: &impl Serialize) -> Result<()> {
        let saving = self.begin(comm, save, state)?;
        self.end(comm, saving)
    }

    /// Begins to save a checkpoint beside the run's `state`: writes this rank's files, or, in the background, copies its tensors on the host and lets a
    /// thread write the copies. All ranks call it together, and [`Self::end`] before they save anything else here.
    pub fn begin(&self, comm: &dyn Comm, save: Save, state: &impl Serialize) -> Result<Saving> {
        let Save { moment, contents, retention, background } = save;
        let staged = Staged::begin(comm, &self.path(moment))?;
        let place = (comm.rank(), comm.world());
        let files = match contents.add(comm, staged.dir(), state) {
            Err(error) => Files::Written(Err(error)), // the others learn of it at the end
            Ok(()) if background => {
                let staged = staged.clone();
                let copies: Vec<CopiedSet> = contents.sets.iter().map(TensorSet::copied).collect();
                let write = move || staged.write(place, &copies.iter().map(CopiedSet::as_set).collect::<Vec<_>>());
                Files::UnderWay(Builder::new().name("checkpoint".into()).spawn(write).context("starting a thread")?)
            }
            Ok(()) => Files::Written(staged.write(place, &contents.sets)),
        };
        Ok(Saving { moment, retention, staged, files })
    }

    /// Waits until all ranks have written their files, links the checkpoint, and removes those that its retention does not keep. All ranks
    /// call it together.
    pub fn end(&self, comm: &dyn Comm, saving: Saving) -> Result<()> {
        let Saving { moment, retention, staged, files } = saving;
        let written = match files {
            Files::Written(written) => written,
            Files::UnderWay(thread) => {
                thread.join().unwrap_or_else(|_| Err(anyhow!("the thread that writes a checkpoint panicked")))
            }
        };
        staged.end(comm, written)?;
        if comm.rank() == 0 {
            self.link(moment, &retention);
        }
        agree(comm, if comm.rank() == 0 { self.remove_old(moment, &retention) } else { Ok(()) })
    }
}
