//! Logits of token rows under a model with adapters beside its weights, for scripts/bench/lora_reach.py.
//!
//! usage: adapted_logits MODEL_DIR ADAPTER.safetensors RANK ALPHA TOKENS.json OUT.safetensors
//!
//! Computes in bfloat16 and writes `logits`, float32 (N, V): for each row one fewer than its ids, row after row.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nestor::policy::backward::states;
use nestor::policy::{Network, Packed};
use nestor_model::data::{Rows, Sequence};
use nestor_model::files::{TokenRow, read_tokens};
use nestor_model::model::weights;
use nestor_model::shard::{Ranks, update_rule};
use nestor_recipe::{Lora, Optimizer};
use tch::{Device, Kind, Tensor, no_grad};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, adapter, rank, alpha, tokens, out] = &arguments[..] else {
        bail!("usage: adapted_logits MODEL_DIR ADAPTER RANK ALPHA TOKENS OUT");
    };
    let settings = Lora::of_all(rank.parse().context("the rank")?, alpha.parse().context("alpha")?);
    let model = weights::load(Path::new(model), Kind::BFloat16, Device::Cpu)?;
    let rule = update_rule(&Optimizer::default());
    let mut policy = Network::with_lora(model, rule, (&settings, 0), &Ranks::solo(Device::Cpu))?;
    weights::read_flats(Path::new(adapter), policy.trained(), &policy.optimizer.master_weights)?;
    policy.refresh()?;
    let mut all = Vec::new();
    for (row, TokenRow { tokens: ids, .. }) in read_tokens(Path::new(tokens))?.into_iter().enumerate() {
        let response = ids.len() as u64 - 1;
        let rows = Rows { span_start: vec![1], token_offsets: vec![0, response], ..Rows::default() };
        let sequence = Sequence { tokens: ids, rows: vec![0], ..Sequence::default() };
        let packed = Packed::new(&[&sequence], &rows, &policy.model)?;
        let logits = no_grad(|| {
            let mut reader = policy.model.reader();
            let states = states(&policy.model, &packed, &mut reader)?;
            Ok::<_, anyhow::Error>(policy.model.logits(&policy.model.outer_weights(&mut reader, false)?, &states))
        });
        all.push(logits.with_context(|| format!("row {row}"))?.to_kind(Kind::Float));
    }
    Tensor::write_safetensors(&[("logits", Tensor::cat(&all, 0))], out)?;
    Ok(())
}
