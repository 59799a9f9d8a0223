//! Updates of several iterations, shared by ranks, for `tests/python/test_fully_shard.py`, which compares them with PyTorch.
//!
//! usage: updates MODEL_DIR BATCHES.json OUT.safetensors full|grad_op
//!
//! BATCHES holds `batches` (one for each iteration, each a list of sequences as in `gradients`), `update` (a recipe's
//! section) and `temperature`. Ranks come from torchrun's variables. Rank 0 prints a JSON object for each optimizer step
//! and writes the final parameters, float32.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nestor::policy::Network;
use nestor::policy::update::{UpdateSettings, update};
use nestor_drivers::{Row, named, pack};
use nestor_model::model::weights;
use nestor_model::ranks::{self, Rendezvous};
use nestor_model::shard::{Ranks, update_rule};
use nestor_recipe::{Dist, Sharding, Update};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

#[derive(Deserialize)]
struct Input {
    batches: Vec<Vec<Vec<Row>>>,
    update: Update,
    temperature: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batches, out, sharding] = &arguments[..] else {
        bail!("usage: updates MODEL_DIR BATCHES.json OUT full|grad_op");
    };
    let input: Input = serde_json::from_str(&std::fs::read_to_string(batches)?).context("reading the batches")?;
    let sharding: Sharding = serde_json::from_value(sharding.as_str().into())?;
    let comm = ranks::join(&Rendezvous::of_environment()?, Device::Cpu, &Dist::default())?;
    let ranks = Ranks { comm, sharding, ..Ranks::solo(Device::Cpu) };
    let first = ranks.comm.rank() == 0;

    let model = weights::load(Path::new(model), Kind::Float, Device::Cpu)?;
    let mut policy = Network::new(model, update_rule(&input.update.optimizer), &ranks)?;
    let settings = UpdateSettings {
        update: &input.update,
        loss: None,
        lr: input.update.lr,
        temperature: input.temperature,
        max_response_tokens: 1,
        seed: 0,
    };
    for batch in &input.batches {
        let batch = pack(batch, &policy.model.config)?;
        for step in update(&mut policy, &batch, &settings)?.each.iter().filter(|_| first) {
            let own = |name| step.losses.get(name).unwrap_or(0.0);
            println!(
                "{}",
                serde_json::json!({
                    "total": own("loss/total"), "policy": own("loss/policy"), "kl": own("loss/kl"), "norm": step.grad_norm,
                })
            );
        }
    }
    let layouts = &policy.model.layouts;
    let whole = layouts.iter().zip(policy.weights()).map(|(layout, shard)| ranks.whole_of(layout, &shard));
    let whole = whole.collect::<Result<Vec<_>>>()?;
    if first {
        Tensor::write_safetensors(&named("", layouts, &whole), out)?;
    }
    Ok(())
}
