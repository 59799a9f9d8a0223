//! The plain structs that cross modules: what was played ([`Step`], [`Episode`]), what an estimator scores ([`Rows`])
//! and what the update packs ([`Sequence`], [`Batch`]).

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// One environment step: one prompt, one response, one reward.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Token ids of the prompt, chat template included. In a transcript those that this step added to the conversation:
    /// prompts and responses of an episode, in turn, are then the whole of it.
    pub prompt: Vec<u32>,
    /// Token ids the policy sampled, the end-of-sequence token included when it was sampled.
    pub response: Vec<u32>,
    /// Log-probability of each response token under the policy that sampled it (untruncated distribution at the
    /// sampling temperature); as long as `response`.
    pub logprobs: Vec<f32>,
    /// The observation the prompt was built from.
    pub observation: String,
    /// The actions that the environment named as admissible, where it names any.
    pub admissible: Vec<String>,
    /// The response as text, special tokens left out: what the environment was given.
    pub response_text: String,
    /// The action the environment read in the response.
    pub action: String,
    /// Key of the state the step was taken in.
    pub anchor: Vec<u8>,
    /// The environment's reward of this step.
    pub reward: f64,
    /// Whether the environment accepted the form of the response.
    pub valid: bool,
    /// The episode ended here by the environment's own rules.
    pub terminated: bool,
    /// The episode was cut here (step limit, no room in the conversation, or a limit of the environment).
    pub truncated: bool,
}

/// One play of a task from reset to done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Number of the group inside the iteration, from 0.
    pub group: u32,
    /// Number of the episode inside the iteration, from 0; groups are contiguous.
    pub episode: u32,
    /// The task of the environment's split.
    pub task: u64,
    /// The seed given to the environment's reset; one for the whole group.
    pub seed: u64,
    /// The steps in the order played.
    pub steps: Vec<Step>,
    /// Whether the environment counts the episode as won.
    pub won: bool,
    /// The environment's name for the kind of task, where it has kinds.
    pub task_type: Option<String>,
}

impl Episode {
    /// Undiscounted sum of the environment's rewards.
    pub fn episode_return(&self) -> f64 {
        self.steps.iter().map(|s| s.reward).sum()
    }
}

/// Steps as an estimator sees them, one column per field, one row per step, and ragged columns per response token.
///
/// `token_offsets` has B+1 entries: the tokens of row `i` are `token_offsets[i]..token_offsets[i + 1]` of
/// `token_rewards`, `logprobs`, `ref_logprobs`, `advantages` and `returns`. `values` has one more entry per row
/// (the value after the last token is not zero), so row `i` starts at `token_offsets[i] + i`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// Number of the group.
    pub group: Vec<u32>,
    /// Number of the episode, unique over all groups.
    pub episode: Vec<u32>,
    /// Number of the step inside its episode, from 0.
    pub step: Vec<u32>,
    /// The sequence that holds the row's response.
    pub sequence: Vec<u32>,
    /// Position of the response's first token in the sequence.
    pub span_start: Vec<u32>,
    /// The environment's reward of the step, before any penalty.
    pub reward: Vec<f64>,
    /// What an invalid action costs in this row (0 for a valid one); already subtracted in `token_rewards`.
    pub penalty: Vec<f64>,
    /// Whether the environment accepted the form of the response.
    pub valid: Vec<bool>,
    /// The episode ended here by the environment's own rules.
    pub terminated: Vec<bool>,
    /// The episode was cut here.
    pub truncated: Vec<bool>,
    /// Key of the state the step was taken in.
    pub anchor: Vec<Vec<u8>>,
    /// The row this one is a copy of, or -1. A copy counts in group statistics and takes its source's step return.
    pub duplicate_of: Vec<i64>,
    /// Where each row's tokens start; B+1 entries.
    pub token_offsets: Vec<u64>,
    /// Episode reward, penalty and KL-in-reward on their tokens.
    pub token_rewards: Vec<f64>,
    /// Critic values, where the estimator asks for them.
    pub values: Option<Vec<f32>>,
    /// Behaviour log-probs.
    pub logprobs: Vec<f32>,
    /// Reference log-probs, where asked for.
    pub ref_logprobs: Option<Vec<f32>>,
    /// Filled by the estimator, one per response token.
    pub advantages: Vec<f32>,
    /// Filled by the estimator, one per response token.
    pub returns: Vec<f32>,
}

impl Rows {
    /// Number of rows B.
    pub fn len(&self) -> usize {
        self.group.len()
    }

    /// Where a row's tokens stand in the token columns.
    pub fn response(&self, row: u32) -> Range<usize> {
        let row = row as usize;
        self.token_offsets[row] as usize..self.token_offsets[row + 1] as usize
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty()
    }
}

/// One packed sequence: a prompt and a response (window history), or a whole episode with several responses
/// (transcript). `rows` are the rows whose responses lie in it, in order of their spans.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    /// All token ids.
    pub tokens: Vec<u32>,
    /// The rows whose response spans lie in this sequence.
    pub rows: Vec<u32>,
}

/// What one iteration trains on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The sequences in the order collected.
    pub sequences: Vec<Sequence>,
    /// Their rows.
    pub rows: Rows,
    /// Log-probs of the response tokens under the policy before its first optimiser step, where the recipe has the
    /// update compute them itself.
    pub recomputed: Option<Vec<f32>>,
}

impl Batch {
    /// The log-probs that ratios are taken against: recomputed ones, or those of the engine.
    pub fn old_logprobs(&self) -> &[f32] {
        self.recomputed.as_deref().unwrap_or(&self.rows.logprobs)
    }
}
