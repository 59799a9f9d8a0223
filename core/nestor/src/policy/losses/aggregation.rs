//! Aggregation of token losses to one number, as weights of the tokens.
//!
//! With l_{i,k} the loss of token k of response i and L_i its number of tokens, over the B responses and T tokens of the whole
//! mini-batch:
//!
//! ```text
//! token-mean              sum_{i,k} l_{i,k} / T
//! seq-mean-token-sum      sum_i sum_k l_{i,k} / B
//! seq-mean-token-mean     sum_i (sum_k l_{i,k} / L_i) / B
//! seq-mean-token-sum-norm sum_i (sum_k l_{i,k} / R) / B, R the longest response allowed (Dr. GRPO, arXiv:2503.20783)
//! token-sum-norm          sum_{i,k} l_{i,k} / R, which the reference implementation calls seq-mean-token-sum-norm
//! ```
//!
//! The other names are the reference implementation's; a "seq" is one step's response there and here, also in a transcript.
//! Every aggregation is a weighted sum of token losses, so micro-batches and ranks simply add up. The KL loss and the
//! entropy bonus may have another one than the policy's term: under GSPO, whose term is seq-mean-token-mean, they are
//! token-mean.

use crate::recipe::{Aggregation, ShortMiniBatch, Update};

/// Weights of the response tokens of one mini-batch, which carry the aggregation.
#[derive(Debug, Clone, Copy)]
pub struct TokenWeights {
    aggregation: Aggregation,
    regularizer: Aggregation,
    /// B.
    responses: f64,
    /// T.
    tokens: f64,
    /// R.
    longest: f64,
    /// Weight of a short mini-batch relative to a full one.
    full: f64,
}

impl TokenWeights {
    /// Weights for a mini-batch whose responses have these lengths.
    pub fn new(update: &Update, lengths: impl Iterator<Item = usize>, max_response_tokens: usize) -> Self {
        let (responses, tokens) = lengths.fold((0, 0), |(n, sum), length| (n + 1, sum + length));
        let full = match update.short_mini_batch {
            ShortMiniBatch::Mean => 1.0,
            ShortMiniBatch::Reference => responses as f64 / update.mini_batch as f64,
        };
        Self {
            aggregation: update.aggregation,
            regularizer: update.regularizer_aggregation(),
            responses: responses.max(1) as f64,
            tokens: tokens.max(1) as f64,
            longest: max_response_tokens as f64,
            full,
        }
    }

    /// Weight in the policy's term of each token of a response of this length.
    pub fn of(&self, length: usize) -> f64 {
        self.under(self.aggregation, length)
    }

    /// Weight in the KL loss and the entropy bonus of each token of a response of this length.
    pub fn of_regularizer(&self, length: usize) -> f64 {
        self.under(self.regularizer, length)
    }

    fn under(&self, aggregation: Aggregation, length: usize) -> f64 {
        match aggregation {
            Aggregation::TokenMean => self.full / self.tokens,
            Aggregation::SeqMeanTokenSum => self.full / self.responses,
            Aggregation::SeqMeanTokenMean => self.full / (self.responses * length as f64),
            Aggregation::SeqMeanTokenSumNorm => self.full / (self.responses * self.longest),
            // A sum: a short mini-batch has less of it by itself.
            Aggregation::TokenSumNorm => 1.0 / self.longest,
        }
    }

    /// Responses and response tokens of the mini-batch, and the longest response allowed.
    pub fn totals(&self) -> [u64; 3] {
        [self.responses as u64, self.tokens as u64, self.longest as u64]
    }

    /// Weight of each token in a mean over all response tokens, as metrics use it.
    pub fn mean(&self) -> f64 {
        1.0 / self.tokens
    }
}
