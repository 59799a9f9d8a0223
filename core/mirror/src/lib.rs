//! The mirror of a run: the copy of its directory in an object store (S3, GCS, Azure, or a folder), which outlives the machine.
//!
//! Objects have the names of the run directory's files. `checkpoints/NAME/manifest.json` is written after the other files of a checkpoint, and
//! the object `latest`, which holds the name of the newest one, after that. So a reader finds whole checkpoints only, whenever the writer was
//! killed. Files of a run are uploaded before its checkpoints: rows of metrics are never older than the newest checkpoint, and a resumed run
//! drops the younger ones.
//!
//! `files.json` has the checksums of the run's files, as a checkpoint's manifest has those of its own.
//!
//! The store's credentials come from the environment, never from a recipe.

mod fetch;
mod files;
mod progress;
mod record;
mod store;
mod sync;
#[cfg(test)]
mod tests;
mod upload;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

pub use fetch::{Fetched, fetch};
pub use files::{FETCHING, SET_ASIDE};
pub use store::Store;
pub use worker::{Report, Worker};

/// The object that names the newest whole checkpoint.
const LATEST: &str = "latest";
/// The object with the sums of the run's files.
const FILES: &str = "files.json";
/// The folder of checkpoints.
const CHECKPOINTS: &str = "checkpoints";
/// The file of a checkpoint that is written last.
const MANIFEST: &str = "manifest.json";

/// Sums of files by their names.
pub type Sums = BTreeMap<String, Sum>;

/// The size and checksum of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    pub bytes: u64,
    /// Hexadecimal.
    pub sha256: String,
}

/// The trainer's knowledge of checkpoints, which this crate does not repeat.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// The whole checkpoints in a folder of them, the frozen reference first and the newest last.
    pub list: fn(&Path) -> Result<Vec<PathBuf>>,
    /// Sorts names as `list` does; other names are left out.
    pub order: fn(Vec<String>) -> Vec<String>,
    /// The files that the manifest in a checkpoint's folder names. Refuses a damaged manifest.
    pub sums: fn(&Path) -> Result<Sums>,
}
