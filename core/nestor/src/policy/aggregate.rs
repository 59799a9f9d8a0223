//! How token losses become one number: the share of each response token in the loss of a mini-batch.
//!
//! With l_{i,k} the loss of token k of response i, L_i its number of tokens, over the B responses and T tokens of the
//! whole mini-batch:
//!
//! ```text
//! token-mean              sum_{i,k} l_{i,k} / T
//! seq-mean-token-sum      sum_i sum_k l_{i,k} / B
//! seq-mean-token-mean     sum_i (sum_k l_{i,k} / L_i) / B
//! seq-mean-token-sum-norm sum_{i,k} l_{i,k} / R, R the longest response allowed (Dr. GRPO, arXiv:2503.20783)
//! ```
//!
//! The names are the reference implementation's; a "seq" is one step's response there and here, in a transcript too.

use crate::recipe::{Aggregation, ShortMiniBatch, Update};

/// One mini-batch as its loss is normalised.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    aggregation: Aggregation,
    /// B.
    responses: f64,
    /// T.
    tokens: f64,
    /// R.
    longest: f64,
    /// What a short mini-batch counts against a whole one.
    full: f64,
}

impl Shares {
    /// Of a mini-batch of these responses' lengths.
    pub fn new(update: &Update, lengths: impl Iterator<Item = usize>, max_response_tokens: usize) -> Self {
        let (responses, tokens) = lengths.fold((0, 0), |(n, sum), length| (n + 1, sum + length));
        let full = match update.short_mini_batch {
            ShortMiniBatch::Mean => 1.0,
            ShortMiniBatch::Reference => responses as f64 / update.mini_batch as f64,
        };
        Self {
            aggregation: update.aggregation,
            responses: responses.max(1) as f64,
            tokens: tokens.max(1) as f64,
            longest: max_response_tokens as f64,
            full,
        }
    }

    /// The share in the loss of each token of a response of this length.
    pub fn of(&self, length: usize) -> f64 {
        match self.aggregation {
            Aggregation::TokenMean => self.full / self.tokens,
            Aggregation::SeqMeanTokenSum => self.full / self.responses,
            Aggregation::SeqMeanTokenMean => self.full / (self.responses * length as f64),
            // A sum: a short mini-batch has less of it by itself.
            Aggregation::SeqMeanTokenSumNorm => 1.0 / self.longest,
        }
    }

    /// The share of each token in a mean over all response tokens: what metrics are.
    pub fn mean(&self) -> f64 {
        1.0 / self.tokens
    }
}
