//! The plain structs that cross modules: [`Step`] and [`Episode`] of the rollout, [`Rows`] for the estimator,
//! [`Sequence`] and [`Batch`] for the update, and [`PluginFile`] for the run's record.

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The plugin file behind an environment or estimator, as a run records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFile {
    /// The component's name in recipes.
    pub id: String,
    /// Absolute, without links.
    pub path: PathBuf,
    /// Hexadecimal.
    pub sha256: String,
    /// Version of the plugin border, such as `1.1`.
    pub border: String,
}

/// One environment step: one prompt, one response, one reward.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Token ids of the prompt, including the chat template. In a transcript only those that this step added: prompts
    /// and responses of an episode, in turn, then make up the conversation.
    pub prompt: Vec<u32>,
    /// Token ids that the policy sampled, including the end-of-sequence token if it was sampled.
    pub response: Vec<u32>,
    /// Behaviour log-prob of each response token (untruncated distribution at the sampling temperature); as long as
    /// `response`.
    pub logprobs: Vec<f32>,
    /// The observation that the prompt was built from.
    pub observation: String,
    /// The admissible actions, where the environment lists them.
    pub admissible: Vec<String>,
    /// The response as text without special tokens, as the environment received it.
    pub response_text: String,
    /// The action that the environment parsed from the response.
    pub action: String,
    /// Key of the state in which the step was taken.
    pub anchor: Vec<u8>,
    pub reward: f64,
    /// True if the environment could parse the response.
    pub valid: bool,
    /// The episode ended here by the environment's rules.
    pub terminated: bool,
    /// The episode was cut here: step limit, full conversation, or a limit of the environment.
    pub truncated: bool,
}

/// One play of a task from reset to done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Number of the group in the iteration, from 0.
    pub group: u32,
    /// Number of the episode in the iteration, from 0; groups are contiguous.
    pub episode: u32,
    /// Number of the task in the environment's split.
    pub task: u64,
    /// Seed of the environment's reset, the same for all episodes of a group.
    pub seed: u64,
    pub steps: Vec<Step>,
    pub won: bool,
    /// The environment's name for the kind of task, where it distinguishes kinds.
    pub task_type: Option<String>,
}

impl Episode {
    /// Undiscounted sum of the environment's rewards.
    pub fn episode_return(&self) -> f64 {
        self.steps.iter().map(|s| s.reward).sum()
    }
}

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
}

/// One sequence to train on: a prompt and a response (window history), or a whole episode with several responses
/// (transcript).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The rows whose responses are in this sequence, in order of their spans.
    pub rows: Vec<u32>,
}

/// The training data of one iteration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Sequences in the order collected.
    pub sequences: Vec<Sequence>,
    pub rows: Rows,
    /// Log-probs of the response tokens recomputed before the first optimiser step, where the recipe asks for it.
    pub recomputed: Option<Vec<f32>>,
}

impl Batch {
    /// The denominators of the ratios: recomputed log-probs, or else those of the engine.
    pub fn old_logprobs(&self) -> &[f32] {
        self.recomputed.as_deref().unwrap_or(&self.rows.logprobs)
    }
}
