//! Values and gradients of the critic for `tests/python/test_critic.py`, which compares them with PyTorch.
//!
//! usage: critic MODEL_DIR BATCH.json OUT.safetensors
//!
//! The critic has the policy's embedding, blocks and norm, and a head from BATCH (`weight`: [E], `bias`). BATCH
//! holds `sequences` (`{"tokens": [ids], "spans": [{"start": s, "old_values": [L + 1], "returns": [L]}]}`), `clip` and
//! `update` (a recipe's section). Writes one float32 gradient per parameter and prints values and loss.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nestor::policy::Network;
use nestor::policy::batching::ScoringPasses;
use nestor::policy::critic::{gradients, ragged_values};
use nestor::policy::update::UpdateSettings;
use nestor_model::data::{Batch, Rows, Sequence};
use nestor_model::model::weights;
use nestor_model::shard::{Ranks, update_rule};
use nestor_recipe::Update;
use serde::Deserialize;
use tch::{Device, Kind, Tensor, no_grad};

#[derive(Deserialize)]
struct Input {
    weight: Vec<f32>,
    bias: f32,
    sequences: Vec<Spans>,
    clip: f64,
    update: Update,
}

#[derive(Deserialize)]
struct Spans {
    tokens: Vec<u32>,
    spans: Vec<Span>,
}

#[derive(Deserialize)]
struct Span {
    start: u32,
    old_values: Vec<f32>,
    returns: Vec<f32>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, out] = &arguments[..] else { bail!("usage: critic MODEL_DIR BATCH.json OUT") };
    let input: Input = serde_json::from_str(&std::fs::read_to_string(batch)?).context("reading the batch")?;
    let policy = weights::load(Path::new(model), Kind::Float, Device::Cpu)?;
    let policy = Network::new(policy, update_rule(&input.update.optimizer), &Ranks::solo(Device::Cpu))?;
    let mut critic = Network::critic_of(&policy)?;
    for (name, parameter) in critic.model.named_parameters()? {
        let value = match name.as_str() {
            "score.weight" => Tensor::from_slice(&input.weight).unsqueeze(0),
            "score.bias" => Tensor::from_slice(&[input.bias]),
            _ => continue,
        };
        no_grad(|| parameter.shallow_clone().copy_(&value));
    }
    let batch = pack(input.sequences);
    let passes = ScoringPasses::new(critic.micro_batching(input.update.micro_batch_tokens), &batch);
    let values = ragged_values(&critic.ranks, &critic.model, &batch, &passes)?;
    let settings = UpdateSettings {
        update: &input.update,
        loss: None,
        lr: 0.0,
        temperature: 1.0,
        max_response_tokens: 1,
        seed: 0,
    };
    let all: Vec<usize> = (0..batch.sequences.len()).collect();
    let (loss, clip_fraction) = gradients(&mut critic, &batch, &all, input.clip, &settings)?;
    let mut named: Vec<(String, Tensor)> = Vec::new();
    for (layout, grad) in critic.model.layouts.iter().zip(&critic.optimizer.grads) {
        named.extend(layout.params.iter().map(|p| (p.name.clone(), layout.view(grad, p).contiguous())));
    }
    Tensor::write_safetensors(&named, out)?;
    println!("{}", serde_json::json!({ "values": values, "loss": loss, "clip_fraction": clip_fraction }));
    Ok(())
}

fn pack(sequences: Vec<Spans>) -> Batch {
    let mut batch = Batch { rows: Rows { token_offsets: vec![0], ..Rows::default() }, ..Batch::default() };
    let rows = &mut batch.rows;
    for Spans { tokens, spans } in sequences {
        let first = rows.len() as u32;
        for span in spans {
            rows.group.push(0);
            rows.span_start.push(span.start);
            rows.token_rewards.resize(rows.token_rewards.len() + span.returns.len(), 0.0);
            rows.token_offsets.push(rows.token_rewards.len() as u64);
            rows.values.get_or_insert_default().extend(span.old_values);
            rows.returns.extend(span.returns);
        }
        batch.sequences.push(Sequence { tokens, rows: (first..rows.len() as u32).collect(), ..Sequence::default() });
    }
    batch
}
