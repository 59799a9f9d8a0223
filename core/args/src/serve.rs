//! Arguments of `nestor serve`.

use std::path::PathBuf;

use clap::Args;

use super::{Compute, MOST_TOKENS, at_most};

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// A run directory (its newest complete checkpoint), a checkpoint, a Hugging Face folder, or a cached Hub id
    pub model: PathBuf,
    /// Adapters of the model, served under a name of their own: a folder of peft, or a run or checkpoint that trained adapters of
    /// the same model
    #[arg(long = "adapter", value_name = "NAME=PATH")]
    pub adapters: Vec<String>,
    /// Name of the model in requests; by default that of its folder, or its Hub id
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The address to listen on; one that other machines reach needs --api-key
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// The port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub port: u16,
    /// The key that every request must send as `Authorization: Bearer KEY`; by default the environment variable NESTOR_API_KEY, and
    /// without one no key
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Requests of one model decoded at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_most(4096))]
    pub slots: usize,
    /// Longest prompt and response together, in tokens; by default the model's context, but at most 8192. The cache has room for as many in
    /// every slot
    #[arg(long, value_name = "N", value_parser = at_most(MOST_TOKENS))]
    pub max_tokens: Option<usize>,
    /// Sets the chat template's thinking switch; by default the template's own default
    #[arg(long, value_name = "true|false")]
    pub thinking: Option<bool>,
    #[command(flatten)]
    pub compute: Compute,
}
