//! The arguments of `nestor import-prompts`.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `nestor import-prompts`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// The reference's repository, its folder agent_system/environments/prompts, or a single file prompts.py, as in its branch
    /// paper_version
    pub dir: PathBuf,
    /// The folder to write the templates into
    #[arg(long, value_name = "DIR", default_value = "prompts")]
    pub out: PathBuf,
    /// Write changed prompts too, marked as such, and replace templates that are there
    #[arg(long)]
    pub force: bool,
    /// Sums of another version of the reference, in the form of tests/fixtures/reference_prompts.json
    #[arg(long, value_name = "FILE")]
    pub sums: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
