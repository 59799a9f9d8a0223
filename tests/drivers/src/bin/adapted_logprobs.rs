//! Log-probs of token rows under a model with adapters beside its weights, for scripts/bench/lora_reach.py.
//!
//! usage: adapted_logprobs MODEL_DIR ADAPTER.safetensors RANK ALPHA TOKENS.json DTYPE
//!
//! Prints a list of log-probs for each row, one fewer than its ids. DTYPE is float32, bfloat16 or float16.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nestor::files::read_tokens;
use nestor::model::weights;
use nestor::policy::Network;
use nestor::policy::logprobs::logprobs;
use nestor::recipe::Lora;
use nestor::shard::Ranks;
use tch::{Device, Kind};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, adapter, rank, alpha, tokens, dtype] = &arguments[..] else {
        bail!("usage: adapted_logprobs MODEL_DIR ADAPTER RANK ALPHA TOKENS DTYPE");
    };
    let kind = match dtype.as_str() {
        "float32" => Kind::Float,
        "bfloat16" => Kind::BFloat16,
        "float16" => Kind::Half,
        other => bail!("unknown type {other}"),
    };
    let settings = Lora { rank: rank.parse().context("the rank")?, alpha: alpha.parse().context("alpha")? };
    let model = weights::load(Path::new(model), kind, Device::Cpu)?;
    let mut policy = Network::with_lora(model, &settings, 0, &Ranks::solo(Device::Cpu))?;
    weights::read_flats(Path::new(adapter), policy.trained(), &policy.optimizer.master_weights)?;
    policy.refresh()?;
    println!("{}", serde_json::to_string(&logprobs(&policy.model, &read_tokens(Path::new(tokens))?)?)?);
    Ok(())
}
