//! A run of a sweep.

use std::path::PathBuf;

use nestor_recipe::Recipe;

/// One run.
#[derive(Debug, Clone)]
pub struct Job {
    /// VARIANT/seed-N.
    pub name: String,
    /// The run directory.
    pub dir: PathBuf,
    /// `--set` arguments.
    pub sets: Vec<String>,
    pub recipe: Recipe,
    /// The model of the shared warm start that it begins with.
    pub model: Option<PathBuf>,
}
