//! Arguments of `nestor init`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `nestor init`.
#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// The environment: the id of a plugin, or the path of a plugin file
    #[arg(long, value_name = "ID")]
    pub env: Option<String>,
    /// The environment's configuration as YAML; by default its own, or the example that the plugin gives
    #[arg(long, value_name = "YAML")]
    pub config: Option<String>,
    /// A reward function, `module:function`, in place of `--env` and `--config`: answers to prompts of `--data` are scored by it.
    /// Several add up
    #[arg(long, value_name = "MODULE:FUNCTION", requires = "data", conflicts_with_all = ["env", "config"])]
    pub reward: Vec<String>,
    /// The prompts of `--reward`, in JSON Lines or Parquet
    #[arg(long, value_name = "FILE", requires = "reward")]
    pub data: Option<PathBuf>,
    /// The estimator: the id of a plugin, or the path of a plugin file
    #[arg(long, value_name = "ID")]
    pub estimator: Option<String>,
    /// The model: `new`, the default, for a small network with random weights, which a CPU can train, or a model as `model.path` takes it
    #[arg(long, value_name = "new|PATH|ID")]
    pub model: Option<String>,
    /// The recipe to write; by default ENV_ESTIMATOR.yaml
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}
