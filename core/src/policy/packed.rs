//! Sequences of one micro-batch on the device, and which hidden states predict their response tokens.

use tch::{Device, Tensor};

use super::attention::{Packing, packed_tokens};
use crate::data::{Rows, Sequence};

/// The sequences of one forward pass, end to end.
#[derive(Debug)]
pub struct Packed {
    /// Token ids (T).
    pub tokens: Tensor,
    /// Positions and attention.
    pub packing: Packing,
    /// The token whose hidden state predicts each response token, (R) int64.
    pub predictors: Tensor,
    /// The response tokens, (R) int64.
    pub targets: Tensor,
    /// Where each response token lies in the ragged columns of [`Rows`], (R).
    pub token_index: Vec<usize>,
}

impl Packed {
    /// Packs sequences of a batch in the given order.
    pub fn new(sequences: &[&Sequence], rows: &Rows, device: Device) -> Self {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.tokens.len()).collect();
        let (mut predictors, mut targets, mut token_index) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for sequence in sequences {
            for &row in &sequence.rows {
                let row = row as usize;
                let span = rows.span_start[row] as usize;
                let ragged = rows.token_offsets[row] as usize..rows.token_offsets[row + 1] as usize;
                for (t, index) in ragged.enumerate() {
                    predictors.push((start + span + t) as i64 - 1);
                    targets.push(i64::from(sequence.tokens[span + t]));
                    token_index.push(index);
                }
            }
            start += sequence.tokens.len();
        }
        Self {
            tokens: packed_tokens(sequences.iter().map(|s| &s.tokens[..]), device),
            packing: Packing::new(&lengths, device),
            predictors: Tensor::from_slice(&predictors).to_device(device),
            targets: Tensor::from_slice(&targets).to_device(device),
            token_index,
        }
    }

    /// The entries of a ragged column that belong to this pack, (R) float32.
    pub fn pick(&self, column: &[f32]) -> Tensor {
        let values: Vec<f32> = self.token_index.iter().map(|&i| column[i]).collect();
        Tensor::from_slice(&values).to_device(self.tokens.device())
    }
}
