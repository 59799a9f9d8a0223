//! Texts to vectors of length 1: the mean of BERT's last hidden states over the tokens, as E5 takes it (arXiv 2212.03533).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor, no_grad};

use super::bert::Bert;
use crate::files::{hex, read_object, sum};
use crate::input_error;
use crate::model::{hub, weight_files};
use crate::tokenizer::TextTokenizer;

/// Most tokens of a batch, padding included; a longer text is a batch of its own.
const BATCH_TOKENS: usize = 16_384;

/// sentence-transformers' description of how token states become one vector.
const POOLING: &str = "1_Pooling/config.json";

/// Options of an encoder.
#[derive(Debug, Clone)]
pub struct EncoderOptions {
    /// A Hugging Face folder, or the cached Hub id of one.
    pub model: PathBuf,
    /// Tokens of a text that count, special tokens included.
    pub max_length: usize,
    /// The compute type.
    pub kind: Kind,
    pub device: Device,
}

/// An encoder of texts.
#[derive(Debug)]
pub struct Encoder {
    tokenizer: TextTokenizer,
    network: Bert,
    device: Device,
    /// SHA-256 over the model's files.
    pub sum: String,
    /// Tokens of a text that count.
    pub max_length: usize,
}

impl Encoder {
    /// Loads an encoder.
    ///
    /// # Errors
    /// A folder that lacks a file, or that holds no BERT encoder with mean pooling.
    pub fn load(options: &EncoderOptions) -> Result<Self> {
        let dir = hub::folder(&options.model)?;
        if !dir.is_dir() {
            return Err(input_error!("{}: no such folder; name the folder of a BERT encoder", dir.display()));
        }
        check_pooling(&dir)?;
        let network = Bert::load(&dir, options.kind, options.device)?;
        let max_length = options.max_length.min(network.config.max_position_embeddings as usize);
        let tokenizer = TextTokenizer::load(&dir, max_length)?;
        Ok(Self { tokenizer, network, device: options.device, sum: sum_of(&dir)?, max_length })
    }

    /// Numbers of a vector.
    pub fn dim(&self) -> i64 {
        self.network.config.hidden_size
    }

    /// One vector for each text, as rows (texts, dim), float32, on the CPU. Texts of like length share a batch.
    ///
    /// # Errors
    /// If the tokenizer fails on a text or has more words than the model, or if libtorch fails.
    pub fn encode(&self, texts: Vec<String>) -> Result<Tensor> {
        let rows = self.tokenizer.encode(texts)?;
        let vocab_size = self.network.config.vocab_size;
        if let Some(id) = rows.iter().flatten().find(|&&id| i64::from(id) >= vocab_size) {
            return Err(input_error!(
                "the tokenizer has token id {id}, but the encoder's vocab_size is {vocab_size}; take both from one folder"
            ));
        }
        let mut vectors = Tensor::f_zeros([rows.len() as i64, self.dim()], (Kind::Float, Device::Cpu))?;
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&row| rows[row].len());
        for batch in batches(&order, |row| rows[row].len()) {
            let ids: Vec<&[u32]> = batch.iter().map(|&row| &rows[row][..]).collect();
            let places: Vec<i64> = batch.iter().map(|&row| row as i64).collect();
            let pooled = no_grad(|| self.pooled(&ids))?.f_to_device(Device::Cpu)?;
            let _ = vectors.f_index_copy_(0, &Tensor::from_slice(&places), &pooled)?;
        }
        Ok(vectors)
    }

    /// Normalised means (B, E) of the states of some texts' tokens, float32.
    fn pooled(&self, rows: &[&[u32]]) -> Result<Tensor> {
        let length = rows.iter().map(|row| row.len()).max().context("a batch has a text")?;
        let (mut ids, mut mask) = (Vec::with_capacity(rows.len() * length), Vec::with_capacity(rows.len() * length));
        for row in rows {
            let padding = length - row.len();
            ids.extend(row.iter().map(|&id| i64::from(id)).chain(std::iter::repeat_n(0, padding)));
            mask.extend(std::iter::repeat_n(true, row.len()).chain(std::iter::repeat_n(false, padding)));
        }
        let shape = [rows.len() as i64, length as i64];
        let tensor = |flat: Tensor| -> Result<Tensor> { Ok(flat.f_view(shape)?.f_to_device(self.device)?) };
        let (ids, mask) = (tensor(Tensor::from_slice(&ids))?, tensor(Tensor::from_slice(&mask))?);
        let states = self.network.forward(&ids, &mask)?.f_to_kind(Kind::Float)?;
        let mask = mask.f_unsqueeze(-1)?;
        let total = states.f_masked_fill(&mask.f_logical_not()?, 0.0)?.f_sum_dim_intlist(1, false, Kind::Float)?;
        let mean = total.f_div(&mask.f_sum_dim_intlist(1, false, Kind::Float)?)?;
        let norm = mean.f_norm_scalaropt_dim(2.0, -1, true)?.f_clamp_min(1e-12)?;
        Ok(mean.f_div(&norm)?)
    }
}

/// Cuts rows, which are sorted by length, into batches of at most [`BATCH_TOKENS`] tokens with padding.
fn batches(order: &[usize], length: impl Fn(usize) -> usize) -> Vec<&[usize]> {
    let (mut cut, mut begin) = (Vec::new(), 0);
    for (end, &row) in order.iter().enumerate() {
        if end > begin && (end + 1 - begin) * length(row) > BATCH_TOKENS {
            cut.push(&order[begin..end]);
            begin = end;
        }
    }
    if begin < order.len() {
        cut.push(&order[begin..]);
    }
    cut
}

/// Refuses an encoder whose folder says that its vectors are made otherwise.
fn check_pooling(dir: &Path) -> Result<()> {
    let path = dir.join(POOLING);
    let Some(json) = read_object(&path)? else { return Ok(()) };
    let on = |key: &str| json.get(key).and_then(Value::as_bool).unwrap_or(false);
    let other = json
        .keys()
        .find(|key| key.starts_with("pooling_mode_") && *key != "pooling_mode_mean_tokens" && on(key.as_str()));
    match other {
        Some(other) => Err(input_error!(
            "{}: the encoder pools by {other}, but only pooling_mode_mean_tokens can be computed; take an encoder such as \
             intfloat/e5-base-v2",
            path.display()
        )),
        None => Ok(()),
    }
}

/// SHA-256 over names and contents of the files that make the vectors.
fn sum_of(dir: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let files = ["config.json", "tokenizer.json"].map(String::from).into_iter().chain(weight_files::files_of(dir)?);
    for file in files {
        hasher.update(format!("{} {file}\n", sum(&dir.join(&file))?.sha256));
    }
    Ok(hex(hasher))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_every_row_once_within_the_bound() {
        let lengths = [1, 1, 2, 500, 512, 512, 8_000, 9_000, 20_000];
        let order: Vec<usize> = (0..lengths.len()).collect();
        let cut = batches(&order, |row| lengths[row]);
        assert_eq!(cut.concat(), order);
        let tokens = |batch: &[usize]| batch.len() * batch.iter().map(|&row| lengths[row]).max().unwrap_or(0);
        assert!(cut.iter().all(|batch| batch.len() == 1 || tokens(batch) <= BATCH_TOKENS), "{cut:?}");
        assert_eq!(cut.len(), 4, "{cut:?}");
    }
}
