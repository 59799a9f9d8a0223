//! Reasons that runs cannot be read or compared. Each is a mistake in the request.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Reason that a file of a run cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The path is not a run directory.
    #[error("{}: not a run directory: it has no metrics.jsonl, recipe.yaml or evaluation.json", .0.display())]
    NotARun(PathBuf),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A row, not the last one, is not a JSON object with an iteration.
    #[error("{}:{line}: not a row of metrics: {reason}; remove the line", path.display())]
    Row {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        reason: String,
    },
    /// `recipe.yaml` is not YAML.
    #[error("{}: not a recipe: {reason}", path.display())]
    Recipe { path: PathBuf, reason: String },
}

/// Reason that runs cannot be compared.
#[derive(Debug, Error)]
pub enum CompareError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("no run given: name run directories or record files")]
    NoRuns,
    /// The run has been written by a version that kept too little.
    #[error("{run} has no {lacks}: it is of an older version; run it again")]
    Older { run: String, lacks: &'static str },
    /// The run has not been evaluated yet.
    #[error("{run} has no {lacks}: it has made no evaluation (eval.tasks, eval.every), or has only begun")]
    NotEvaluated { run: String, lacks: &'static str },
    /// A file contradicts another, or is damaged.
    #[error("{run}: {reason}")]
    Damaged { run: String, reason: String },
    /// A line of a record file is no record.
    #[error("{}:{line}: not a record of `nestor compare --save`: {reason}", path.display())]
    Record {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        reason: String,
    },
    /// Two runs are replicates of the same seed.
    #[error("{first} and {second} are of one group and have the same seed {seed}: give one of them")]
    Twice { first: String, second: String, seed: u64 },
    /// A folder holds runs of several recipes.
    #[error("the runs of folder {folder} differ in {}: they are no replicates", keys.join(", "))]
    Mixed { folder: String, keys: Vec<String> },
    #[error("no group is called `{name}`; the groups are {}", groups.join(", "))]
    NoGroup { name: String, groups: Vec<String> },
    /// The runs differ in more than what is compared: one sentence for each difference.
    #[error("the runs are not comparable: {}", .0.join("; "))]
    Incomparable(Vec<String>),
}
