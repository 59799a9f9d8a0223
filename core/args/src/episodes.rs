//! Arguments of `nestor episodes`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub struct EpisodesArgs {
    /// A run directory
    pub run: PathBuf,
    /// The episodes to take: conditions such as `won`, `return >= 0.5`, `steps <= 8`, `tokens < 500`, `iteration > 10`,
    /// `task = 3` or `valid` (no step was invalid), joined by `and`; `not won` is one too
    #[arg(long = "where", value_name = "CONDITIONS")]
    pub condition: Option<String>,
    /// The episodes of training, those of evaluations, or both
    #[arg(long, value_enum, default_value = "training")]
    pub from: EpisodesOf,
    /// The form of a row
    #[arg(long, value_enum, default_value = "messages")]
    pub format: Format,
    /// Leave out rows that equal an earlier one
    #[arg(long)]
    pub dedupe: bool,
    /// Put the rows into an order that this seed draws; by default that of the run
    #[arg(long, value_name = "SEED")]
    pub shuffle: Option<u64>,
    /// Most rows
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// The file of JSON Lines to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// The episodes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EpisodesOf {
    /// Those of training
    Training,
    /// Those of evaluations
    Evaluations,
    /// Both
    All,
}

/// The form of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Chats, as `warm_start.data` reads them: `messages` of an episode that is one conversation, else `prompt` and `completion` of each step
    Messages,
    /// Prompt and response of each step as text, with the special tokens of the chat template
    Text,
}
