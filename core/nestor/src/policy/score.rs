//! `nestor score`: the log-prob of each token given those before it, by the same passes that the update runs.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::attention::{Packing, packed_tokens};
use super::{Packed, token_stats};
use crate::files::read_tokens;
use crate::model::{Model, weights};

/// Tokens of one forward pass, unless a single row is longer: bounds the memory.
const PACK_TOKENS: usize = 8192;

/// Scores the rows of a tokens file (`{"rows": [[ids…], …]}`): `{"logprobs": [[…one number fewer than ids…], …]}`.
pub fn score(dir: &Path, tokens: &Path, kind: Kind, device: Device) -> Result<Value> {
    let rows = read_tokens(tokens)?;
    let model = weights::load(dir, kind, device)?;
    model.config.check_tokens(&format!("{}: row", tokens.display()), &rows)?;
    Ok(json!({ "logprobs": logprobs(&model, &rows)? }))
}

/// Log-probs of every token but the first of each row.
pub fn logprobs(model: &Model, rows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    let mut out = Vec::with_capacity(rows.len());
    let mut rest = rows;
    while !rest.is_empty() {
        let mut tokens = 0;
        let fits = rest.iter().take_while(|row| {
            tokens += row.len();
            tokens <= PACK_TOKENS
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        out.extend(score_pack(model, now)?);
        rest = later;
    }
    Ok(out)
}

fn score_pack(model: &Model, rows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    // A row of one token has nothing to predict.
    let scored: Vec<&[u32]> = rows.iter().map(Vec::as_slice).filter(|row| row.len() > 1).collect();
    let lengths: Vec<usize> = scored.iter().map(|row| row.len()).collect();
    let (mut predictors, mut targets, mut start) = (Vec::new(), Vec::new(), 0);
    for row in &scored {
        predictors.extend((start..start + row.len() - 1).map(|t| t as i64));
        targets.extend(row[1..].iter().map(|&id| i64::from(id)));
        start += row.len();
    }
    let mut values = Vec::new();
    if !scored.is_empty() {
        let device = model.device();
        let packed = Packed {
            tokens: packed_tokens(scored.iter().copied(), device),
            packing: Packing::new(&lengths, device),
            predictors: Tensor::from_slice(&predictors).to_device(device),
            targets: Tensor::from_slice(&targets).to_device(device),
            token_index: Vec::new(),
            lengths: Vec::new(),
        };
        values = Vec::<f32>::try_from(token_stats(model, &packed, 1.0)?.logprobs.to_device(Device::Cpu))?;
    }
    let mut values = values.into_iter();
    Ok(rows.iter().map(|row| values.by_ref().take(row.len().saturating_sub(1)).collect()).collect())
}
