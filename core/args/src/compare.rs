//! Arguments of `nestor compare`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Run directories, folders of runs such as that of a sweep, or record files that --save wrote. Runs whose recipes
    /// differ in the seed only form a group
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The group that all others are compared with, by its name; by default that of the first run
    #[arg(long, value_name = "GROUP")]
    pub against: Option<String>,
    /// Number of last evaluations whose mean is compared; by default half of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Success from 0 to 1: the iterations until an evaluation reaches it are counted
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub threshold: f64,
    /// Group runs by the folder that holds them instead of by recipe, and name the groups so
    #[arg(long)]
    pub by_folder: bool,
    /// Compare runs that are not comparable, and say so in the result
    #[arg(long)]
    pub anyway: bool,
    /// Write all that was read, one line for each run, to a file that stands for the runs
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}
