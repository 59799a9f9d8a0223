//! Arguments of `nestor view` and `nestor play`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;

/// Arguments of `nestor view`.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// Run directories, folders of runs, checkpoints of runs, or outputs of `nestor eval --out`; runs that differ in the seed only are drawn
    /// as their mean and range
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The HTML page to write; by default view.html in the first run's directory
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Maximum size of the page in MiB; turns that do not fit are left out
    #[arg(long, value_name = "M", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub max_mib: u64,
    /// Keep turns of these iterations only
    #[arg(long, value_name = "A..B", value_parser = iterations)]
    pub iterations: Option<RangeInclusive<u64>>,
    /// Serve the page to this machine until SIGINT or SIGTERM, with all turns, and follow the runs while they train
    #[arg(long, conflicts_with_all = ["out", "max_mib", "iterations"])]
    pub serve: bool,
    /// With --serve: the port; 0 takes any that is free
    #[arg(long, value_name = "N", default_value_t = 0, requires = "serve")]
    pub port: u16,
}

/// `A..B`, both ends included.
fn iterations(text: &str) -> Result<RangeInclusive<u64>, String> {
    let ends = text.split_once("..").map(|(from, to)| (from.parse(), to.parse()));
    match ends {
        Some((Ok(from), Ok(to))) if from <= to => Ok(from..=to),
        _ => Err("expected A..B, such as 10..20".into()),
    }
}

/// Arguments of `nestor play`.
#[derive(Debug, Clone, Args)]
pub struct PlayArgs {
    /// The environment: the id of a plugin, or the path of a plugin file
    pub plugin: String,
    /// The environment's configuration, YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The split to take the task from
    #[arg(long, default_value = "train")]
    pub split: String,
    /// Number of the task in its split, from 0
    #[arg(long, default_value_t = 0)]
    pub task: u64,
    /// Seed of the reset
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Responses to play, one JSON string per line; without it they are read from standard input
    #[arg(long, value_name = "FILE")]
    pub actions: Option<PathBuf>,
    /// Write the images of observations into this folder, as PNG files
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Print one JSON object per step, the reset first
    #[arg(long)]
    pub json: bool,
}
