//! The columns of rows that need a forward pass of the policy, before its update: log-probs, entropies, hidden states.
//!
//! One pass gives all of them. The engine's sampler has no entropy for free: it would sum over the vocabulary for every token
//! of every run. This pass has the update's arithmetic, and `update.old_logprobs: recompute` makes it anyway.

use anyhow::Result;
use nestor_torch::ops::rows;
use nestor_torch::upload;
use tch::{Device, Kind, Tensor, no_grad};

use super::batching::ScoringPasses;
use super::lm_head::{TokenStats, stats_of_states, token_stats};
use super::logprobs::shared_numbers;
use super::packing::Packed;
use super::prefix_tree::Path;
use crate::data::{Batch, Rows, Sequence};
use crate::model::Model;
use crate::model::decoder::BlockInput;
use crate::model::images::TowerSource;
use crate::model::linear::Tape;
use crate::plugin::Column;
use crate::shard::Ranks;

/// Mean hidden states: after a block, over the last tokens before a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HiddenMean {
    /// Number of the block, from 0.
    pub block: usize,
    pub tokens: usize,
}

impl HiddenMean {
    /// The mean that a column names in a network of this many blocks; none for other columns, and for a block that the
    /// network does not have.
    pub fn of(column: &Column, blocks: usize) -> Option<Self> {
        let Column::Hidden { layer, tokens } = *column else { return None };
        let block = if layer < 0 { blocks as i64 + i64::from(layer) } else { i64::from(layer) };
        let block = usize::try_from(block).ok().filter(|&block| block < blocks)?;
        Some(Self { block, tokens: tokens as usize })
    }
}

/// The results of a pass over a batch, at every rank.
#[derive(Debug)]
pub struct PolicyColumns {
    /// Log-probs of the response tokens, (R).
    pub logprobs: Vec<f32>,
    /// Entropies of their distributions, (R).
    pub entropy: Vec<f32>,
    /// (B, E) each, in the order asked for.
    pub hidden: Vec<Vec<f32>>,
}

/// Computes the columns at the sampling temperature; the ranks share the work.
pub fn policy_columns(
    ranks: &Ranks,
    model: &Model,
    batch: &Batch,
    passes: &ScoringPasses,
    temperature: f64,
    hidden: &[HiddenMean],
) -> Result<PolicyColumns> {
    let (tokens, states) = (batch.response_tokens(), batch.rows.len() * model.config.hidden_size as usize);
    let size = 2 * tokens + hidden.len() * states;
    let mut numbers = shared_numbers(ranks, model, batch, passes, size, |sequences, numbers| {
        let packed = Packed::new(sequences, &batch.rows, model)?;
        let (logprobs, rest) = numbers.split_at_mut(tokens);
        let (entropy, rest) = rest.split_at_mut(tokens);
        let stats = match hidden {
            [] => token_stats(model, &packed, temperature)?,
            _ => {
                let (stats, means) = stats_and_hidden(model, sequences, &batch.rows, &packed, temperature, hidden)?;
                for (mean, column) in means.iter().zip(rest.chunks_mut(states.max(1))) {
                    put_rows(mean, sequences, column)?;
                }
                stats
            }
        };
        packed.put(&stats.logprobs, logprobs);
        packed.put(&stats.entropy, entropy);
        Ok(())
    })?;
    let rest = numbers.split_off(2 * tokens);
    let entropy = numbers.split_off(tokens);
    let hidden = (0..hidden.len()).map(|i| rest[i * states..(i + 1) * states].to_vec()).collect();
    Ok(PolicyColumns { logprobs: numbers, entropy, hidden })
}

/// The token statistics of a micro-batch, and its mean hidden states (rows, E), float32. The last block computes all states,
/// not only those that predict a token.
fn stats_and_hidden(
    model: &Model,
    sequences: &[&Sequence],
    batch_rows: &Rows,
    packed: &Packed,
    temperature: f64,
    hidden: &[HiddenMean],
) -> Result<(TokenStats, Vec<Tensor>)> {
    let mut reader = model.reader();
    let spans = Spans::of(sequences, batch_rows, &packed.paths);
    let mut means: Vec<Tensor> = hidden.iter().map(|_| Tensor::new()).collect();
    let states = no_grad(|| {
        let rope = model.rope(&packed.packing.positions);
        let embeddings = model.joined_embeddings(packed.shown(), TowerSource::Read(&mut reader))?;
        let mut x = model.embed(&model.outer_weights(&mut reader, false)?, &packed.tokens);
        if let Some((rows, embeddings)) = packed.images.as_ref().zip(embeddings.as_ref()) {
            x = rows.put(&x, embeddings);
        }
        for block in 0..model.blocks() {
            let weights = model.block_weights(&mut reader, block, false)?;
            reader.prefetch(model.unit_after(block))?;
            let input = BlockInput {
                x: &x,
                rope: &rope,
                decodes: false,
                keys: packed.packing.sequences.keys.as_ref(),
                read: None,
            };
            let attend = |q: &Tensor, k: &Tensor, v: &Tensor| model.ops.attend([q, k, v], &packed.packing.sequences);
            x = model.block(&weights, input, &mut Tape::off(), attend);
            for (mean, asked) in means.iter_mut().zip(hidden).filter(|(_, asked)| asked.block == block) {
                *mean = spans.mean(&x, asked.tokens);
            }
        }
        anyhow::Ok(rows(&x, &packed.predictors))
    })?;
    Ok((stats_of_states(model, &mut reader, &states, packed, temperature)?, means))
}

/// Starts of the responses of packed sequences.
struct Spans<'a> {
    /// Each response's sequence, and its first token in that.
    starts: Vec<(&'a Path, usize)>,
}

impl<'a> Spans<'a> {
    fn of(sequences: &[&Sequence], rows: &Rows, paths: &'a [Path]) -> Self {
        let starts = sequences.iter().zip(paths).flat_map(|(sequence, path)| {
            sequence.rows.iter().map(move |&row| (path, rows.span_start[row as usize] as usize))
        });
        Self { starts: starts.collect() }
    }

    /// Means of states (T, E) over the last tokens before each response, as far as its sequence has them: (rows, E).
    fn mean(&self, x: &Tensor, tokens: usize) -> Tensor {
        let (mut from, mut to, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for (row, &(path, response)) in self.starts.iter().enumerate() {
            let begin = response.saturating_sub(tokens);
            from.extend((begin..response).map(|token| path.place(token) as i64));
            to.extend(std::iter::repeat_n(row as i64, response - begin));
            shares.extend(std::iter::repeat_n(1.0 / (response - begin) as f32, response - begin));
        }
        let device = x.device();
        let chosen = x.index_select(0, &upload(&from, device)).to_kind(Kind::Float);
        let chosen = chosen * upload(&shares, device).unsqueeze(1);
        let sum = Tensor::zeros([self.starts.len() as i64, x.size()[1]], (Kind::Float, device));
        sum.index_add(0, &upload(&to, device), &chosen)
    }
}

/// Writes states (rows, E) to the places of their rows in a column (B, E).
fn put_rows(states: &Tensor, sequences: &[&Sequence], column: &mut [f32]) -> Result<()> {
    let numbers = Vec::<f32>::try_from(states.to_device(Device::Cpu).flatten(0, 1))?;
    let size = states.size()[1] as usize;
    for (row, state) in sequences.iter().flat_map(|sequence| &sequence.rows).zip(numbers.chunks(size)) {
        column[*row as usize * size..][..size].copy_from_slice(state);
    }
    Ok(())
}
