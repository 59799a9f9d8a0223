//! Arguments of the commands on one model.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nestor_recipe::{DeviceChoice, Dtype};

use super::{MOST_TOKENS, at_most};

/// Compute type and device of a command.
#[derive(Debug, Clone, Copy, Args)]
pub struct Compute {
    /// The compute type
    #[arg(long, value_enum, default_value = "float32")]
    pub dtype: Dtype,
    /// The device to compute on
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceChoice,
}

#[derive(Args)]
pub struct Score {
    /// A run directory (its newest complete checkpoint), a checkpoint, a Hugging Face folder, or a cached Hub id
    pub model: PathBuf,
    /// Token ids: {"rows": [[id, …], …]}, with images {"rows": …, "images": [[file, …], …]}
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    #[command(flatten)]
    pub compute: Compute,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Generate {
    /// A run directory (its newest complete checkpoint), a checkpoint, a Hugging Face folder, or a cached Hub id
    pub model: PathBuf,
    #[command(flatten)]
    pub prompt: Prompt,
    /// An image that comes before the user's message; repeat it for more. The model must read images
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "tokens"])]
    pub image: Vec<PathBuf>,
    /// Sets the chat template's thinking switch; by default the template's own default
    #[arg(long, value_name = "true|false", conflicts_with_all = ["prompt", "tokens"])]
    pub thinking: Option<bool>,
    /// Maximum number of tokens of a continuation
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_most(MOST_TOKENS))]
    pub max_new_tokens: usize,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub temperature: f64,
    /// Sample from the K most probable tokens; 0 is off
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: i64,
    /// Sample from the fewest tokens with at least this total probability; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// Sample from tokens of these with at least this part of the likeliest token's probability; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f64,
    /// Seed of the samples
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub compute: Compute,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Prompt {
    /// Text to continue, without the chat template
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A user's message, or chats, rendered with the chat template: JSON if it begins with `[` or `{`, a file if it ends in .json or
    /// .jsonl, else the message's text
    #[arg(long, value_name = "TEXT|JSON|FILE")]
    pub chat: Option<String>,
    /// Token ids: {"rows": [[id, …], …]}, with images {"rows": …, "images": [[file, …], …]}
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

#[derive(Args)]
pub struct Tokenize {
    /// A run directory (its newest complete checkpoint), a checkpoint, a Hugging Face folder, or a cached Hub id
    pub model: PathBuf,
    /// A user's message, or chats: JSON if it begins with `[` or `{`, a file if it ends in .json or .jsonl, else the message's text.
    /// A chat is [{"role": …, "content": …}, …], or {"messages": […], "tools": […]}; a list of chats gives a list of ids
    #[arg(long, value_name = "TEXT|JSON|FILE")]
    pub chat: String,
    /// Sets the chat template's thinking switch; by default the template's own default
    #[arg(long, value_name = "true|false")]
    pub thinking: Option<bool>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum ModelCommand {
    /// Write a model with random weights as a Hugging Face folder
    #[command(after_help = "Example:\n  nestor model new runs/tiny --shape tiny")]
    New {
        /// The folder to create
        dir: PathBuf,
        /// Shape of the network by name, such as tiny, 0.5b or qwen3-0.6b; a name that is not known lists all
        #[arg(long)]
        shape: String,
        /// Number of blocks; by default the shape's. A vision tower gets at most as many
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        layers: Option<u16>,
        /// The tokenizer.json of a Qwen model
        #[arg(long, value_name = "FILE")]
        tokenizer: Option<PathBuf>,
        /// Seed of the weights
        #[arg(long, value_name = "S", default_value_t = 0)]
        seed: u64,
        /// Data type of the weights
        #[arg(long, value_enum, default_value = "bfloat16")]
        dtype: Dtype,
    },
}

#[derive(Args)]
pub struct Export {
    /// A run directory (its newest complete checkpoint), a checkpoint such as RUN/checkpoints/best, a Hugging Face folder,
    /// or a cached Hub id
    pub model: PathBuf,
    /// The folder to create
    pub dir: PathBuf,
    /// Export the critic instead of the policy
    #[arg(long)]
    pub critic: bool,
    /// Export the LoRA adapter instead of the policy, in the format of peft
    #[arg(long, conflicts_with_all = ["critic", "dtype"])]
    pub adapter: bool,
    /// Data type of the weights; checkpoints store float32
    #[arg(long, value_enum, default_value = "float32")]
    pub dtype: Dtype,
}
