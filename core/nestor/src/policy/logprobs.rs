//! Log-probs without gradients, by the same passes that the update runs: of a batch as a ragged column, and of token files
//! (`nestor score`).

use std::path::Path;

use anyhow::Result;
use nestor_torch::upload;
use serde_json::{Value, json};
use tch::Device;

use super::backward::idle_forward;
use super::batching::{ScoringPasses, advance};
use super::lm_head::token_stats;
use super::packing::Packed;
use crate::data::{Batch, Sequence};
use crate::files::{TokenRow, read_tokens};
use crate::model::Model;
use crate::model::vision::{PlacedImage, place};
use crate::ranks::Reduce;
use crate::shard::Ranks;

/// Tokens of one forward pass of `nestor score`, unless a single row is longer: bounds the memory.
const PASS_TOKENS: usize = 8192;

/// Log-probs of every response token of a batch under a network, as a ragged column; the ranks share the work.
pub fn ragged_logprobs(
    ranks: &Ranks,
    model: &Model,
    batch: &Batch,
    passes: &ScoringPasses,
    temperature: f64,
) -> Result<Vec<f32>> {
    shared_numbers(ranks, model, batch, passes, batch.response_tokens(), |sequences, column| {
        let packed = Packed::new(sequences, &batch.rows, model)?;
        packed.put(&token_stats(model, &packed, temperature)?.logprobs, column);
        Ok(())
    })
}

/// Numbers of a batch, `size` of them. The ranks fill them micro-batch by micro-batch, and all get all of them. A signal ends
/// it between two micro-batches.
pub fn shared_numbers(
    ranks: &Ranks,
    model: &Model,
    batch: &Batch,
    passes: &ScoringPasses,
    size: usize,
    fill: impl Fn(&[&Sequence], &mut [f32]) -> Result<()>,
) -> Result<Vec<f32>> {
    let mut column = vec![0f32; size];
    ranks.progress.set_total(passes.micro_batches.iter().flatten().map(Vec::len).sum());
    for micro in &passes.micro_batches {
        ranks.check_stop()?;
        let Some(micro) = micro else {
            idle_forward(model)?;
            continue;
        };
        let sequences: Vec<_> = micro.iter().map(|&i| &batch.sequences[i]).collect();
        fill(&sequences, &mut column)?;
        advance(ranks, &sequences);
    }
    let comm = &ranks.comm;
    if !comm.is_alone() {
        // Entries that other ranks computed are zero here.
        let sum = upload(&column, comm.device());
        comm.all_reduce(&sum, Reduce::Sum)?;
        let count = column.len();
        sum.to_device(Device::Cpu).copy_data(&mut column, count);
    }
    Ok(column)
}

/// Scores the rows of a tokens file ([`read_tokens`]): `{"logprobs": [[…one number fewer than ids…], …]}`. Loads the
/// model once the file is read.
pub fn score(tokens: &Path, load: impl FnOnce() -> Result<Model>) -> Result<Value> {
    let rows = read_tokens(tokens)?;
    let model = load()?;
    let named = format!("{}: row", tokens.display());
    model.config.check_tokens(&named, rows.iter().map(|row| &row.tokens[..]))?;
    Ok(json!({ "logprobs": logprobs(&model, &rows)? }))
}

/// Log-probs of every token but the first of each row.
pub fn logprobs(model: &Model, rows: &[TokenRow]) -> Result<Vec<Vec<f32>>> {
    let mut out = Vec::with_capacity(rows.len());
    let mut rest = rows;
    while !rest.is_empty() {
        let mut tokens = 0;
        let fits = rest.iter().take_while(|row| {
            tokens += row.tokens.len();
            tokens <= PASS_TOKENS
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        out.extend(one_pass(model, now)?);
        rest = later;
    }
    Ok(out)
}

fn one_pass<'a>(model: &Model, rows: &'a [TokenRow]) -> Result<Vec<Vec<f32>>> {
    // A row of one token has nothing to predict.
    let part = |row: &'a TokenRow| Ok((&row.tokens[..], place(&row.tokens, &row.images, &model.config)?));
    let scored: Vec<(&[u32], Vec<PlacedImage>)> =
        rows.iter().filter(|row| row.tokens.len() > 1).map(part).collect::<Result<_>>()?;
    let mut values = Vec::new();
    if !scored.is_empty() {
        let packed = Packed::predicting_all(&scored, model.device());
        values = Vec::<f32>::try_from(token_stats(model, &packed, 1.0)?.logprobs.to_device(Device::Cpu))?;
    }
    let mut values = values.into_iter();
    Ok(rows.iter().map(|row| values.by_ref().take(row.tokens.len().saturating_sub(1)).collect()).collect())
}
