//! What the command line may say.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use nestor_torch::Backend;

use crate::agent::play::PlayArgs;
use crate::bench::{IterationArgs, RolloutArgs};
use crate::model::Compute;
use crate::plan::PlanArgs;
use crate::recipe::{Dtype, Recompute, Sharding};
use crate::view::ViewArgs;

/// Trains LLM agents by reinforcement learning over many turns
#[derive(Parser)]
#[command(name = "nestor", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a recipe
    Train(Train),
    /// Start a command on several ranks of this machine
    Launch(Launch),
    /// Measure a model's success on a recipe's evaluation tasks
    Eval(Eval),
    /// Memory, communication and time of a recipe, without a run
    Plan(PlanArgs),
    /// Draw runs and their episodes on one HTML page
    View(ViewArgs),
    /// Play an environment by hand or from a file
    Play(PlayArgs),
    /// Run an advantage estimator on recorded steps
    Advantage(Advantage),
    /// Log-probability of each token given those before it
    Score(Score),
    /// Continue prompts with a model
    Generate(Generate),
    /// Token ids of a chat, generation prompt included
    Tokenize(Tokenize),
    /// Make models
    #[command(subcommand)]
    Model(ModelCommand),
    /// Write a checkpoint in Hugging Face form
    Export(Export),
    /// Measure stated work on random tokens
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Look at plugins
    #[command(subcommand)]
    Plugin(PluginCommand),
}

#[derive(Args)]
pub struct Train {
    /// The recipe
    pub recipe: PathBuf,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// The run directory; by default the first free runs/RECIPE[-N]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Go on from the newest whole checkpoint
    #[arg(long)]
    pub resume: bool,
    /// Print JSON: one object a line for everything that happens
    #[arg(long)]
    pub json: bool,
    /// Set by `launch` when it starts the ranks again: resume if there is something to go on from
    #[arg(long, hide = true)]
    pub restarted: bool,
}

#[derive(Args)]
pub struct Launch {
    /// Number of ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub nproc: u16,
    /// Start all ranks again after a failure, this often at most; `train` then goes on from its newest whole checkpoint
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub restarts: u32,
    /// The command: train, bench collective or bench update, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct Eval {
    /// The recipe; RUN/recipe.yaml is one
    pub recipe: PathBuf,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// A run directory (its newest whole checkpoint), a checkpoint, or a Hugging Face folder; by default the recipe's
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Episodes to play instead of the recipe's eval.tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub episodes: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Advantage {
    /// The estimator: id of a plugin, or path of a plugin file
    pub estimator: String,
    /// The estimator's configuration
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub config: String,
    /// The recorded steps
    #[arg(long, value_name = "FILE")]
    pub rows: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Score {
    /// A model in Hugging Face form
    pub model_dir: PathBuf,
    /// Token ids: {"rows": [[id, …], …]}
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
    /// A model in Hugging Face form
    pub model_dir: PathBuf,
    #[command(flatten)]
    pub prompt: Prompt,
    /// Whether the chat template asks the model to think first; without it the template's default
    #[arg(long, value_name = "true|false", conflicts_with_all = ["prompt", "tokens"])]
    pub thinking: Option<bool>,
    /// Longest continuation
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new_tokens: usize,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub temperature: f64,
    /// Sample among the K likeliest tokens; 0 is off
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: i64,
    /// Sample among the likeliest tokens that hold this much probability; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
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
    /// Text to continue as it stands
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A user's message, put through the chat template
    #[arg(long, value_name = "TEXT")]
    pub chat: Option<String>,
    /// Token ids: {"rows": [[id, …], …]}
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

#[derive(Args)]
pub struct Tokenize {
    /// A folder with a tokenizer in Hugging Face form
    pub model_dir: PathBuf,
    /// The chat: [{"role": …, "content": …}, …]
    #[arg(long, value_name = "FILE")]
    pub chat: PathBuf,
    /// Whether the chat template asks the model to think first; without it the template's default
    #[arg(long, value_name = "true|false")]
    pub thinking: Option<bool>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum ModelCommand {
    /// Write a model with random weights in Hugging Face form
    New {
        /// The folder to make
        dir: PathBuf,
        /// Size of the network: tiny, 0.5b, 1.5b, 3b, 7b, 14b, qwen3-tiny, qwen3-0.6b or qwen3-1.7b
        #[arg(long)]
        shape: String,
        /// A tokenizer.json with Qwen's tokens
        #[arg(long, value_name = "FILE")]
        tokenizer: Option<PathBuf>,
        /// Seed of the weights
        #[arg(long, value_name = "S", default_value_t = 0)]
        seed: u64,
        /// The type of the weights
        #[arg(long, value_enum, default_value = "bfloat16")]
        dtype: Dtype,
    },
}

#[derive(Args)]
pub struct Export {
    /// A checkpoint, such as RUN/checkpoints/iteration-000100
    pub checkpoint: PathBuf,
    /// The folder to make
    pub dir: PathBuf,
    /// The critic in place of the policy
    #[arg(long)]
    pub critic: bool,
    /// LoRA's adapter in place of the policy, as peft loads it
    #[arg(long, conflicts_with_all = ["critic", "dtype"])]
    pub adapter: bool,
    /// The type of the weights; checkpoints hold float32
    #[arg(long, value_enum, default_value = "float32")]
    pub dtype: Dtype,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Sample exactly --new tokens after each prompt
    Generate(Bench),
    /// Log-probs of sequences of --prompt + --new tokens
    Score(Bench),
    /// One optimiser step on sequences of --prompt + --new tokens
    Update(Bench),
    /// Play a scripted multi-turn environment with responses of ragged, forced lengths
    Rollout(RolloutArgs),
    /// A whole iteration on a scripted environment, by phase
    Iteration(IterationArgs),
    /// How far the engine's log-probs are from the update's, on --new tokens sampled after each prompt
    LogprobDiff(Bench),
    /// Sum a tensor over the ranks of torchrun's or srun's variables, or of a group of one
    Collective {
        /// The library: gloo (CPU) or nccl (GPU)
        #[arg(long, value_parser = backend)]
        backend: Backend,
        /// Size of the tensor
        #[arg(long, value_name = "N", default_value_t = 64)]
        mib: usize,
        /// Repetitions, of which the median counts
        #[arg(long, value_name = "R", default_value_t = 5)]
        repeats: usize,
        /// Seconds after which a sum fails
        #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=604_800))]
        timeout: u64,
        /// Seconds without a sign of life after which a rank counts as dead
        #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=50))]
        silence: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn backend(text: &str) -> Result<Backend, String> {
    match text {
        "gloo" => Ok(Backend::Gloo),
        "nccl" => Ok(Backend::Nccl),
        _ => Err("expected gloo or nccl".into()),
    }
}

#[derive(Args)]
pub struct Bench {
    /// A model in Hugging Face form
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Sequences at once
    #[arg(long, value_name = "B", default_value_t = 16)]
    pub batch: usize,
    /// Tokens of each prompt
    #[arg(long, value_name = "P", default_value_t = 128)]
    pub prompt: usize,
    /// Tokens of each response
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub new: usize,
    /// Repetitions, of which the median counts
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub repeats: usize,
    /// Blocks that an update computes again in its backward pass: auto, all, none, or the first N
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub recompute: Recompute,
    /// Sequences of an update are 10 to 100 % of prompt and response long
    #[arg(long)]
    pub ragged: bool,
    /// How the weights of an update are spread over ranks
    #[arg(long, value_enum, default_value = "full")]
    pub sharding: Sharding,
    #[command(flatten)]
    pub compute: Compute,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum PluginCommand {
    /// What is found where
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
