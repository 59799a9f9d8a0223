//! Arguments of `nestor bench`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use nestor_recipe::{DeviceChoice, Dtype, HistoryMode, Recompute, Sharding, input_error};

use super::model::Compute;
use super::{MOST_TOKENS, at_most};

const MOST_REPEATS: u64 = 1_000_000;
/// A sum over ranks may take a microsecond.
const MOST_SUMS: u64 = 1_000_000_000;
const MOST_EPISODES: u64 = 1 << 20;

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Sample exactly --new tokens after each prompt
    #[command(after_help = "Example:\n  nestor bench generate --model runs/tiny --batch 2 --prompt 16 --new 8")]
    Generate(ProfiledBench),
    /// Compute log-probs of sequences of --prompt + --new tokens
    #[command(after_help = "Example:\n  nestor bench score --model runs/tiny --batch 2 --prompt 16 --new 8")]
    Score(Bench),
    /// Do one optimizer step on sequences of --prompt + --new tokens
    #[command(after_help = "Example:\n  nestor bench update --model runs/tiny --batch 2 --prompt 16 --new 8")]
    Update(UpdateBench),
    /// Play a scripted multi-turn environment with responses of ragged, forced lengths
    #[command(after_help = "Example:\n  nestor bench rollout --model runs/tiny --envs 8 --turns 2")]
    Rollout(RolloutArgs),
    /// Run one iteration on a scripted environment, timed by phase
    #[command(
        after_help = "Example:\n  nestor bench iteration --workload multi-turn --model runs/tiny --envs 8 --turns 2"
    )]
    Iteration(IterationArgs),
    /// Compare the log-probs of engine and update on --new tokens sampled after each prompt
    #[command(after_help = "Example:\n  nestor bench logprob-diff --model runs/tiny --batch 2 --prompt 16 --new 8")]
    LogprobDiff(LogprobDiff),
    /// Test the program's own CUDA kernels on a device, as every start does, and say which it has
    #[command(after_help = "Example:\n  nestor bench kernels --device cpu")]
    Kernels {
        /// The device that has them
        #[arg(long, value_enum, default_value = "auto")]
        device: DeviceChoice,
        /// Name each kernel on standard error before its test, which shows the one that hangs
        #[arg(long)]
        verbose: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// All-reduce a tensor over the ranks that `nestor launch`, torchrun or srun started, or over one
    #[command(after_help = "Example:\n  nestor launch --nproc 2 bench collective --backend gloo --mib 1")]
    Collective {
        /// The communication library: gloo (CPU) or nccl (GPU)
        #[arg(long, value_enum, hide_possible_values = true)]
        backend: Backend,
        /// Size of the tensor
        #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_most(1 << 20))]
        mib: usize,
        /// Number of repetitions; the median is reported
        #[arg(long, value_name = "R", default_value_t = 5, value_parser = at_most(MOST_SUMS))]
        repeats: usize,
        /// Seconds after which an all-reduce fails
        #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=604_800))]
        timeout: u64,
        /// Seconds without a heartbeat after which a rank counts as dead
        #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=50))]
        silence: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The library that transfers tensors between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    Gloo,
    Nccl,
}

/// The model of a measurement and the sequences that it computes.
#[derive(Args)]
pub struct Sequences {
    /// A model as a Hugging Face folder, or a cached Hub id
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Number of sequences
    #[arg(long, value_name = "B", default_value_t = 16, value_parser = at_most(MOST_TOKENS))]
    pub batch: usize,
    /// Tokens of each prompt
    #[arg(long, value_name = "P", default_value_t = 128, value_parser = at_most(MOST_TOKENS))]
    pub prompt: usize,
    /// Tokens of each response
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_most(MOST_TOKENS))]
    pub new: usize,
}

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    pub sequences: Sequences,
    /// Number of repetitions; the median is reported
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = at_most(MOST_REPEATS))]
    pub repeats: usize,
    /// Blocks that an update recomputes in its backward pass: auto, all, none, or the first N
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub recompute: Recompute,
    /// Sharding of an update's weights over ranks
    #[arg(long, value_enum, default_value = "full")]
    pub sharding: Sharding,
    #[command(flatten)]
    pub compute: Compute,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct LogprobDiff {
    #[command(flatten)]
    pub sequences: Sequences,
    /// Prompts in place of random ones, as JSON: {"rows": [[id, …], …]}
    #[arg(long, value_name = "FILE", conflicts_with_all = ["batch", "prompt"])]
    pub tokens: Option<PathBuf>,
    /// Blocks that the update recomputes in its backward pass: auto, all, none, or the first N
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub recompute: Recompute,
    /// One compute type; by default all, one after the other
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// The device to compute on
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceChoice,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ProfiledBench {
    #[command(flatten)]
    pub bench: Bench,
    /// Give the sequences 10 to 100 % of the length of prompt and response, new in every repetition
    #[arg(long)]
    pub ragged: bool,
    /// Profile one more run: the dearest kernels (on a CPU: operations), and launches per pass and layer
    #[arg(long)]
    pub profile: bool,
}

#[derive(Args)]
pub struct UpdateBench {
    #[command(flatten)]
    pub profiled: ProfiledBench,
    /// Train low-rank adapters of this rank in place of all weights, with an alpha of twice the rank
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(i64).range(1..=4096))]
    pub lora: Option<i64>,
}

/// A benchmark that has no profile and no ragged form.
impl From<Bench> for ProfiledBench {
    fn from(bench: Bench) -> Self {
        Self { bench, ragged: false, profile: false }
    }
}

#[derive(Debug, Clone, Args)]
pub struct RolloutArgs {
    /// A model as a Hugging Face folder, or a cached Hub id
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    #[command(flatten)]
    pub script: ScriptArgs,
    #[command(flatten)]
    pub run: RunArgs,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub temperature: f64,
    /// Write the responses of the last repetition: {"episodes": [[[id, …], …], …]}
    #[arg(long, value_name = "FILE")]
    pub responses_out: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct IterationArgs {
    /// A model as a Hugging Face folder, or a cached Hub id; without it, random weights in the workload's shape, if it names one
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub script: ScriptArgs,
    #[command(flatten)]
    pub run: RunArgs,
    /// Steps per optimizer step; by default the workload's, or all
    #[arg(long, value_name = "N", value_parser = at_most(MOST_EPISODES))]
    pub mini_batch: Option<usize>,
    /// Tokens per forward and backward pass
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_most(MOST_TOKENS))]
    pub micro_batch_tokens: usize,
    /// Blocks that the update recomputes in its backward pass: all, none, or the first N
    #[arg(long, value_name = "WHICH", default_value = "none")]
    pub recompute: Recompute,
    /// Weight of the KL loss against a frozen reference, 0 for no reference; by default the workload's
    #[arg(long, value_name = "COEF")]
    pub kl: Option<f64>,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct RunArgs {
    /// Requests decoded at once; by default one per environment
    #[arg(long, value_name = "N", value_parser = at_most(1 << 16))]
    pub slots: Option<usize>,
    /// Repetitions; the median is reported
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = at_most(MOST_REPEATS))]
    pub repeats: usize,
    /// Unreported repetitions before them
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = at_most(MOST_REPEATS))]
    pub warm_up: usize,
    #[command(flatten)]
    pub compute: Compute,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// Fails unless there is something to measure.
    pub fn check(&self) -> Result<()> {
        if self.repeats == 0 || self.slots == Some(0) {
            return Err(input_error!("--repeats and --slots must be at least 1"));
        }
        Ok(())
    }
}

/// Options that select a script.
#[derive(Debug, Clone, Args)]
pub struct ScriptArgs {
    /// The workload: a name (recipes/bench/NAME.yaml, from the root of the repository), or the path of a YAML file
    #[arg(long, value_name = "NAME|FILE", default_value = "multi-turn")]
    pub workload: String,
    /// Environments, a multiple of the group size; another number than the workload's scales it
    #[arg(long, value_name = "N", value_parser = at_most(MOST_EPISODES))]
    pub envs: Option<usize>,
    /// Environments that play the same task
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_most(MOST_EPISODES))]
    pub group_size: usize,
    /// Longest episode in turns; by default the workload's
    #[arg(long, value_name = "T", value_parser = at_most(MOST_EPISODES))]
    pub turns: Option<usize>,
    /// Seed of the script and of the samples
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// The way in which an episode becomes prompts
    #[arg(long, value_enum, default_value = "window")]
    pub history: HistoryMode,
    /// Mean response time of an environment in milliseconds, uniform from 0 to twice the mean
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=3_600_000))]
    pub env_ms: u32,
    /// Write the script as JSON
    #[arg(long, value_name = "FILE")]
    pub script_out: Option<PathBuf>,
}
