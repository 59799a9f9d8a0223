//! Checkpoints of a run by the names that a user gives them (`--resume-from`).

use std::path::PathBuf;

use anyhow::Result;

use super::Checkpoints;
use super::links::BEST;
use super::manifest::damage;
use super::moment::Moment;
use crate::input_error;
use crate::ranks::{Comm, from_root};

impl Checkpoints {
    /// The undamaged checkpoint of this run that a name means, the same one at every rank: `best`, the number of an iteration, or a folder.
    pub fn named(&self, comm: &dyn Comm, name: &str) -> Result<PathBuf> {
        let path = from_root(comm, || self.find(name))?;
        match damage(comm, &path)? {
            None => Ok(path),
            Some(why) => Err(input_error!("--resume-from {name}: {why}; choose another checkpoint")),
        }
    }

    fn find(&self, name: &str) -> Result<PathBuf> {
        let all = self.list()?;
        let numbers = || all.iter().map(|(moment, _)| moment.to_string()).collect::<Vec<_>>().join(", ");
        let path = match name.parse() {
            Ok(iteration) => self.path(Moment::iteration(iteration)),
            Err(_) if name == BEST => self.dir.join(BEST),
            Err(_) => PathBuf::from(name),
        };
        let wanted = Moment::of_folder(&path);
        let own = all
            .iter()
            .find(|(moment, own)| Some(*moment) == wanted && own.canonicalize().ok() == path.canonicalize().ok());
        own.map(|(_, path)| path.clone()).ok_or_else(|| {
            input_error!(
                "--resume-from {name}: the run in {} has no such checkpoint; it has {}. To begin another run with the weights of a \
                 checkpoint, name it by model.path",
                self.dir.parent().unwrap_or(&self.dir).display(),
                if all.is_empty() { "none".into() } else { numbers() }
            )
        })
    }
}
