//! A save: begun between two steps of the run, written at once or by a thread beside the next iteration, and ended by all ranks
//! together.

use std::thread::{Builder, JoinHandle};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use super::atomic_dir::{CopiedSet, Staged, Sums, TensorSet};
use super::{Checkpoints, Contents, Moment, Retention};
use crate::ranks::{Comm, agree};

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
    /// Saves a checkpoint of this moment, links it, and removes those that `retention` does not keep.
    pub fn save(
        &self,
        comm: &dyn Comm,
        moment: Moment,
        contents: &Contents,
        state: &impl Serialize,
        retention: &Retention,
    ) -> Result<()> {
        let staged = Staged::begin(comm, &self.path(moment))?;
        let written = staged.write((comm.rank(), comm.world()), &contents.sets);
        let written = written.and_then(|sums| contents.add(comm, staged.dir(), state).map(|()| sums));
        self.end(comm, Saving { moment, retention: *retention, staged, files: Files::Written(written) })
    }

    /// Begins to save a checkpoint: copies this rank's tensors on the host, and lets a thread write the copies. All ranks call it together,
    /// and [`Self::end`] before they save anything else here.
    pub fn begin(
        &self,
        comm: &dyn Comm,
        moment: Moment,
        contents: &Contents,
        state: &impl Serialize,
        retention: &Retention,
    ) -> Result<Saving> {
        let staged = Staged::begin(comm, &self.path(moment))?;
        let files = match contents.add(comm, staged.dir(), state) {
            Err(error) => Files::Written(Err(error)), // the others learn of it at the end
            Ok(()) => {
                let (staged, place) = (staged.clone(), (comm.rank(), comm.world()));
                let copies: Vec<CopiedSet> = contents.sets.iter().map(TensorSet::copied).collect();
                let write = move || staged.write(place, &copies.iter().map(CopiedSet::as_set).collect::<Vec<_>>());
                Files::UnderWay(Builder::new().name("checkpoint".into()).spawn(write).context("starting a thread")?)
            }
        };
        Ok(Saving { moment, retention: *retention, staged, files })
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
