//! Sequences packed end to end on one token axis, and causal attention over them.
//!
//! On a CPU a fused operation attends them as they are. On other devices the attention product alone uses right-padded
//! rows, in groups of similar length, so that one call serves many sequences. Causality hides the padding behind every
//! query, so no mask is needed and the result is exact.

use std::ops::Range;

use nestor_torch::fused;
use tch::{Device, Kind, Tensor};

use crate::data::{Rows, Sequence};

/// Longest sequence of a group over its shortest: bounds the padding.
const LENGTH_RATIO: f64 = 1.25;

/// The sequences of one forward pass, and the N states that are read: those that predict the response tokens
/// ([`Packed::new`]), or those whose value a critic gives ([`Packed::with_values`]).
#[derive(Debug)]
pub struct Packed {
    /// Token ids (T).
    pub tokens: Tensor,
    /// Positions and attention.
    pub packing: Packing,
    /// Places of the states on the token axis, (N) int64.
    pub predictors: Tensor,
    /// The token after each state, (N) int64; empty for values.
    pub targets: Tensor,
    /// Place of each state's entry in the ragged columns of [`Rows`], (N).
    pub token_index: Vec<usize>,
    /// Number of states of each response.
    pub lengths: Vec<usize>,
}

impl Packed {
    /// The states that predict the response tokens: N is the number of these.
    pub fn new(sequences: &[&Sequence], rows: &Rows, device: Device) -> Self {
        let mut packed = Self::reading(sequences, rows, device, |row| {
            rows.token_offsets[row] as usize..rows.token_offsets[row + 1] as usize
        });
        packed.targets = packed.tokens.index_select(0, &(&packed.predictors + 1));
        packed
    }

    /// The states before each response token and after the last: indices are those of the column `values`.
    pub fn with_values(sequences: &[&Sequence], rows: &Rows, device: Device) -> Self {
        Self::reading(sequences, rows, device, |row| {
            rows.token_offsets[row] as usize + row..rows.token_offsets[row + 1] as usize + row + 1
        })
    }

    /// `ragged` gives a row's entries in the column; its first state is the one before its first response token.
    fn reading(sequences: &[&Sequence], rows: &Rows, device: Device, ragged: impl Fn(usize) -> Range<usize>) -> Self {
        let (mut predictors, mut token_index, mut responses) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for sequence in sequences {
            for &row in &sequence.rows {
                let first = start + rows.span_start[row as usize] as usize - 1;
                let ragged = ragged(row as usize);
                responses.push(ragged.len());
                predictors.extend((first..first + ragged.len()).map(|t| t as i64));
                token_index.extend(ragged);
            }
            start += sequence.tokens.len();
        }
        let lengths: Vec<usize> = sequences.iter().map(|s| s.tokens.len()).collect();
        Self {
            tokens: packed_tokens(sequences.iter().map(|s| &s.tokens[..]), device),
            packing: Packing::new(&lengths, device),
            predictors: Tensor::from_slice(&predictors).to_device(device),
            targets: Tensor::from_slice(&[0i64; 0]).to_device(device),
            token_index,
            lengths: responses,
        }
    }

    /// The states' entries of a ragged column, (N) float32.
    pub fn pick(&self, column: &[f32]) -> Tensor {
        let values: Vec<f32> = self.token_index.iter().map(|&i| column[i]).collect();
        Tensor::from_slice(&values).to_device(self.tokens.device())
    }

    /// Writes values of the states (N) to their places in a ragged column.
    pub fn put(&self, values: &Tensor, column: &mut [f32]) {
        let mut numbers = vec![0f32; self.token_index.len()];
        let count = numbers.len();
        values.copy_data(&mut numbers, count);
        for (&index, number) in self.token_index.iter().zip(numbers) {
            column[index] = number;
        }
    }

    /// One number per response, repeated for each of its states: (N) float32.
    pub fn per_response(&self, number: impl Fn(usize) -> f64) -> Tensor {
        let repeated = self.lengths.iter().flat_map(|&length| std::iter::repeat_n(number(length) as f32, length));
        Tensor::from_slice(&repeated.collect::<Vec<_>>()).to_device(self.tokens.device())
    }

    /// The response each state belongs to, counted from 0: (N) int64.
    pub fn responses(&self) -> Tensor {
        let numbers = self.lengths.iter().enumerate().flat_map(|(i, &length)| std::iter::repeat_n(i as i64, length));
        Tensor::from_slice(&numbers.collect::<Vec<_>>()).to_device(self.tokens.device())
    }
}

/// Token ids of sequences, end to end, (T) int64.
pub fn packed_tokens<'a>(sequences: impl Iterator<Item = &'a [u32]>, device: Device) -> Tensor {
    let ids: Vec<i64> = sequences.flatten().map(|&id| i64::from(id)).collect();
    Tensor::from_slice(&ids).to_kind(Kind::Int64).to_device(device)
}

/// Positions of packed sequences, and causal attention of each sequence over itself.
#[derive(Debug)]
pub struct Packing {
    /// Position of every token in its own sequence, (T) int64.
    pub positions: Tensor,
    lengths: Vec<i64>,
    /// Empty where the fused operation attends.
    groups: Vec<PaddedGroup>,
    /// Place of each packed token in the concatenated group outputs, (T) int64; absent for one unpadded group.
    back: Option<Tensor>,
}

/// Sequences of similar length, attended in one call.
#[derive(Debug)]
struct PaddedGroup {
    /// For each cell of the padded (n, T_max) rows the packed token, (n * T_max) int64; absent when the group is the
    /// whole token axis without padding.
    gather: Option<Tensor>,
    rows: i64,
    length: i64,
}

impl Packing {
    /// The packing of sequences with these lengths, in this order.
    pub fn new(lengths: &[usize], device: Device) -> Self {
        let own: Vec<i64> = lengths.iter().map(|&n| n as i64).filter(|&n| n > 0).collect();
        let mut starts = Vec::with_capacity(lengths.len());
        let mut positions = Vec::with_capacity(lengths.iter().sum());
        for &length in lengths {
            starts.push(positions.len());
            positions.extend(0..length as i64);
        }
        let total = positions.len();
        let positions = Tensor::from_slice(&positions).to_device(device);
        if fused::has_products(device) {
            return Self { positions, lengths: own, groups: Vec::new(), back: None };
        }

        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&i| lengths[i]);
        let mut back = vec![0i64; total];
        let mut groups = Vec::new();
        let mut cells = 0;
        let mut rest = &order[..];
        while let Some(&first) = rest.first() {
            let limit = (lengths[first] as f64 * LENGTH_RATIO).max(lengths[first] as f64 + 8.0) as usize;
            let n = rest.partition_point(|&i| lengths[i] <= limit);
            let (members, later) = rest.split_at(n);
            let length = members.iter().map(|&i| lengths[i]).max().unwrap_or(0);
            let mut gather = vec![0i64; n * length];
            for (row, &i) in members.iter().enumerate() {
                for t in 0..lengths[i] {
                    gather[row * length + t] = (starts[i] + t) as i64;
                    back[starts[i] + t] = (cells + row * length + t) as i64;
                }
            }
            let whole = gather.iter().enumerate().all(|(cell, &token)| cell as i64 == token) && gather.len() == total;
            groups.push(PaddedGroup {
                gather: (!whole).then(|| Tensor::from_slice(&gather).to_device(device)),
                rows: n as i64,
                length: length as i64,
            });
            cells += n * length;
            rest = later;
        }
        let whole = groups.len() == 1 && groups[0].gather.is_none();
        let back = (!whole).then(|| Tensor::from_slice(&back).to_device(device));
        Self { positions, lengths: own, groups, back }
    }

    /// Number of tokens T.
    pub fn tokens(&self) -> i64 {
        self.positions.size()[0]
    }

    /// Causal attention of each sequence over itself: queries (T, H, D), keys and values (T, K, D) to (T, H, D).
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        if fused::has_products(q.device()) {
            return fused::attend(q, k, v, &self.lengths);
        }
        let (heads, dim) = (q.size()[1], q.size()[2]);
        let outputs: Vec<Tensor> = self
            .groups
            .iter()
            .map(|group| {
                let rows = |x: &Tensor| {
                    let x = group.gather.as_ref().map_or_else(|| x.shallow_clone(), |cells| take(x, cells));
                    x.view([group.rows, group.length, -1, dim]).transpose(1, 2) // (n, H or K, T_max, D)
                };
                let (q, k, v) = (rows(q), repeat_heads(&rows(k), heads), repeat_heads(&rows(v), heads));
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None, false)
                    .transpose(1, 2)
                    .reshape([-1, heads, dim])
            })
            .collect();
        match &self.back {
            None => outputs[0].shallow_clone(),
            Some(back) => take(&Tensor::cat(&outputs, 0), back),
        }
    }
}

/// Rows of (T, N, D) by index. As an embedding, because the gradient of `index_select` adds row by row on a CPU.
fn take(x: &Tensor, index: &Tensor) -> Tensor {
    let (_, n, dim) = x.size3().unwrap_or_else(|_| unreachable!("queries, keys and values have three dimensions"));
    Tensor::embedding(&x.reshape([-1, n * dim]), index, -1, false, false).view([-1, n, dim])
}

/// Repeats each key or value head of (n, K, T, D) for the query heads that share it: (n, H, T, D).
fn repeat_heads(x: &Tensor, heads: i64) -> Tensor {
    let (n, kv_heads, t, dim) = x.size4().unwrap_or_else(|_| unreachable!("keys have four dimensions"));
    if kv_heads == heads {
        return x.shallow_clone();
    }
    x.unsqueeze(2).expand([n, kv_heads, heads / kv_heads, t, dim], false).reshape([n, heads, t, dim])
}
