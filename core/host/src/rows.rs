//! The rows of an iteration, as the host keeps them for an estimator.

use std::collections::BTreeMap;
use std::ops::Range;

use nestor_plugin::Values;
use serde::{Deserialize, Serialize};

/// Steps as an estimator sees them: one column per field, one row per step, and ragged columns per response token.
///
/// `token_offsets` has B+1 entries: the tokens of row `i` are `token_offsets[i]..token_offsets[i + 1]` of
/// `token_rewards`, `logprobs`, `ref_logprobs`, `advantages` and `returns`. `values` has one more entry per row
/// (the value after the last token is not zero), so row `i` starts at `token_offsets[i] + i`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    pub group: Vec<u32>,
    /// Number of the episode, unique in the iteration.
    pub episode: Vec<u32>,
    /// Number of the step in its episode, from 0.
    pub step: Vec<u32>,
    /// Index of the sequence that holds the row's response.
    pub sequence: Vec<u32>,
    /// Position of the response's first token in the sequence.
    pub span_start: Vec<u32>,
    /// The environment's reward, before any penalty.
    pub reward: Vec<f64>,
    /// Penalty of an invalid action (0 for a valid one); already subtracted in `token_rewards`.
    pub penalty: Vec<f64>,
    /// True if the environment could parse the response.
    pub valid: Vec<bool>,
    /// The episode ended here by the environment's rules.
    pub terminated: Vec<bool>,
    pub truncated: Vec<bool>,
    /// Key of the state in which the step was taken.
    pub anchor: Vec<Vec<u8>>,
    /// The row that this one copies, or -1. A copy counts in group statistics and takes its source's step return.
    pub duplicate_of: Vec<i64>,
    /// Start of each row's tokens (B+1).
    pub token_offsets: Vec<u64>,
    /// Reward, penalty and KL in the reward, each on its token.
    pub token_rewards: Vec<f64>,
    /// Critic values, where the estimator needs them.
    pub values: Option<Vec<f32>>,
    /// Behaviour log-probs.
    pub logprobs: Vec<f32>,
    /// Reference log-probs, where the recipe or the estimator needs them.
    pub ref_logprobs: Option<Vec<f32>>,
    /// The columns that the estimator asks for, by name.
    pub columns: BTreeMap<String, Values>,
    /// Set by the estimator, one per response token.
    pub advantages: Vec<f32>,
    /// Set by the estimator, one per response token.
    pub returns: Vec<f32>,
}

impl Rows {
    /// Number of rows B.
    pub fn len(&self) -> usize {
        self.group.len()
    }

    /// Range of a row's tokens in the token columns.
    pub fn response(&self, row: u32) -> Range<usize> {
        let row = row as usize;
        self.token_offsets[row] as usize..self.token_offsets[row + 1] as usize
    }

    pub fn is_empty(&self) -> bool {
        self.group.is_empty()
    }

    /// Mean advantage over a row's tokens; none where it has no token.
    pub fn advantage(&self, row: usize) -> Option<f64> {
        let tokens = self.advantages.get(self.response(u32::try_from(row).ok()?))?;
        (!tokens.is_empty()).then(|| tokens.iter().map(|&a| f64::from(a)).sum::<f64>() / tokens.len() as f64)
    }
}
