//! Arguments of `nestor plan`.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// The largest number of ranks that a plan considers.
pub const MOST_RANKS: u64 = 4096;

#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// The recipe
    pub recipe: PathBuf,
    /// Replace one value of the recipe; the value is YAML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Ranks; by default WORLD_SIZE, else the number of GPUs here, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_RANKS))]
    pub gpus: Option<u64>,
    /// Ranks on one node
    #[arg(long, value_name = "M", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=MOST_RANKS))]
    pub gpus_per_node: u64,
    /// Device of each rank; by default this machine's GPUs, or its CPU where it has none or the recipe has `device: cpu`
    #[arg(long, value_enum)]
    pub gpu: Option<Gpu>,
    /// Memory of a device in GB, in place of its own; ranks on one CPU share it
    #[arg(long, value_name = "GB", allow_negative_numbers = true)]
    pub memory: Option<f64>,
    /// Choose micro-batch, slots, cache, recomputation and sharding for the memory, and print them as `--set`s
    #[arg(long)]
    pub fit: bool,
    /// Shape of the network in place of the recipe's model folder, as `nestor model new` names it
    #[arg(long, value_name = "SHAPE")]
    pub shape: Option<String>,
    /// Mean steps of an episode; by default two thirds of rollout.max_steps
    #[arg(long, value_name = "N")]
    pub steps: Option<f64>,
    /// Mean tokens of a prompt (in a transcript, of the part that a step adds); by default a quarter of
    /// rollout.max_prompt_tokens
    #[arg(long, value_name = "N")]
    pub prompt: Option<f64>,
    /// Mean tokens of a response; by default a sixth of rollout.max_response_tokens
    #[arg(long, value_name = "N")]
    pub response: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The device of each rank in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
pub enum Gpu {
    /// NVIDIA H100, 80 GB
    #[value(name = "h100-80gb", alias = "h100")]
    #[serde(rename = "h100-80gb")]
    H100,
    /// NVIDIA H200, 141 GB
    #[value(name = "h200-141gb", alias = "h200")]
    #[serde(rename = "h200-141gb")]
    H200,
    /// This machine's CPU and free memory
    #[serde(rename = "cpu")]
    Cpu,
}

impl Display for Gpu {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::H100 => "H100 80 GB",
            Self::H200 => "H200 141 GB",
            Self::Cpu => "this CPU",
        })
    }
}
