//! Arguments of `nestor verify`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args)]
pub struct VerifyArgs {
    /// The recipe
    #[arg(required_unless_present = "runs")]
    pub recipe: Option<PathBuf>,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Iterations of each run
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub iterations: u64,
    /// Number of ranks of the run on several
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..))]
    pub ranks: u16,
    /// Start the ranks also where the machine has too few cores or too little memory
    #[arg(long)]
    pub oversubscribe: bool,
    /// Kill the run after this share of the time from its first checkpoint to its last, 0 to 1; by default drawn at random
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub kill_at: Option<f64>,
    /// Leave out one of the runs
    #[arg(long, value_name = "RUN", value_enum)]
    pub skip: Vec<Play>,
    /// The directory of all runs and of verify.md; by default the first free runs/verify-RECIPE[-N]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Compare two runs that exist instead, and name their first difference
    #[arg(long, value_names = ["RUN", "OTHER"], num_args = 2, conflicts_with_all = ["recipe", "sets", "kill_at", "skip", "out"])]
    pub runs: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A run beside the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Play {
    /// The same command again
    Again,
    /// A run that is killed and resumed
    Resumed,
    /// The recipe on several ranks
    Ranks,
    /// The recipe without deterministic mode, for the cost of that mode
    Plain,
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}
