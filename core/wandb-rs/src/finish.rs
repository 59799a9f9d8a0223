//! The outcome of a run.

use std::fmt;
use std::path::PathBuf;

/// The place of a finished run's rows. Its text form is one line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Tracking was disabled.
    Disabled,
    /// All rows are in the run's directory (offline mode).
    Written {
        /// The run's directory.
        dir: PathBuf,
    },
    /// All rows are on W&B.
    Uploaded,
    /// All rows are in the run's directory, but not all on W&B.
    Left {
        /// The run's directory.
        dir: PathBuf,
        /// Reason that the upload is incomplete.
        why: String,
    },
}

impl Finish {
    /// Returns the command that uploads the rows that are not on W&B yet.
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
