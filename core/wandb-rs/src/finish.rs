//! What became of a run.

use std::fmt;
use std::path::PathBuf;

/// Where the rows of a finished run are. Shown as text, it is one line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Tracking was disabled.
    Disabled,
    /// In the run's directory, as offline mode wants it.
    Written {
        /// The run's directory.
        dir: PathBuf,
    },
    /// On W&B, all of them.
    Uploaded,
    /// All in the run's directory, but not all on W&B.
    Left {
        /// The run's directory.
        dir: PathBuf,
        /// Why they were not uploaded.
        why: String,
    },
}

impl Finish {
    /// The command that uploads what is not on W&B yet.
    pub fn command(&self) -> Option<String> {
        match self {
            Finish::Written { dir } | Finish::Left { dir, .. } => Some(format!("wandb sync {}", dir.display())),
            Finish::Disabled | Finish::Uploaded => None,
        }
    }
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command().unwrap_or_default();
        match self {
            Finish::Disabled => write!(f, "wandb: disabled"),
            Finish::Written { .. } => write!(f, "wandb: upload with: {command}"),
            Finish::Uploaded => write!(f, "wandb: uploaded"),
            Finish::Left { why, .. } => write!(f, "wandb: {why}: upload with: {command}"),
        }
    }
}
