//! The steps of one iteration as an estimator reads them.

use std::ops::Range;

use anyhow::{Context, Result, anyhow, ensure};

use crate::column::{Bytes, Column, Hidden, View};
use crate::ffi;

/// Steps as columns: B rows, T response tokens over all rows. The order of rows has no meaning.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// `[B]` Number of the group; all episodes of one task share it.
    pub group: &'a [u32],
    /// `[B]` Number of the episode, unique over all groups.
    pub episode: &'a [u32],
    /// `[B]` Number of the step in its episode, from 0.
    pub step: &'a [u32],
    /// `[B]` The sequence that holds the response.
    pub sequence: &'a [u32],
    /// `[B]` Position in the sequence of the response's first token.
    pub span_start: &'a [u32],
    /// `[B]` Number of response tokens.
    pub span_length: &'a [u32],
    /// `[B]` The environment's reward of the step, before any penalty.
    pub reward: &'a [f64],
    /// `[B]` The penalty of an invalid response, 0 for a valid one; `token_rewards` already contains it.
    pub penalty: &'a [f64],
    /// `[B]` 0 or 1: the response had the right form.
    pub valid: &'a [u8],
    /// `[B]` 0 or 1: the episode ended with this step.
    pub terminated: &'a [u8],
    /// `[B]` 0 or 1: a limit cut the episode after this step.
    pub truncated: &'a [u8],
    /// Keys of the states, if [`crate::Needs::anchors`].
    pub anchors: Option<Bytes<'a>>,
    /// `[B]` The row this one is a copy of, or -1. A copy counts in group statistics, with its source's step return.
    pub duplicate_of: &'a [i64],
    /// `[B + 1]` Tokens of row `i` are `token_offsets[i]..token_offsets[i + 1]` of the token columns.
    pub token_offsets: &'a [u64],
    /// `[T]` Episode reward, penalty and KL-in-reward, each on its token.
    pub token_rewards: &'a [f64],
    /// `[T + B]` The critic's values, if [`crate::Needs::values`]; see [`Rows::values_of`].
    pub values: Option<&'a [f32]>,
    /// `[T]` Log-probs under the policy that sampled, if recorded.
    pub logprobs: Option<&'a [f32]>,
    /// `[T]` Log-probs under the reference policy, if [`crate::Needs::reference`].
    pub ref_logprobs: Option<&'a [f32]>,
    /// The columns that were asked for ([`Columns`](crate::Columns)); the methods of this type read them.
    pub asked: &'a [(Column, Option<View<'a>>)],
}

/// Declares the methods of [`Rows`] that read one column each.
macro_rules! column_readers {
    ($($(#[$doc:meta])* $name:ident: $column:expr, $kind:ident -> $ty:ty;)*) => { $(
        $(#[$doc])*
        pub fn $name(&self) -> Result<$ty> {
            match self.column(&$column)? {
                View::$kind(entries) => Ok(entries),
                _ => Err(anyhow!("column {} has entries of another kind", $column)),
            }
        }
    )* };
}

/// Columns that were asked for. A column that was not asked for, or that the run lacks, is an error.
impl<'a> Rows<'a> {
    column_readers! {
        /// `[B]` Returns the anchors of the states after the steps, also after the last step of an episode.
        next_anchor: Column::NextAnchor, Bytes -> Bytes<'a>;
        /// `[B]` Returns 1 where the episode was won.
        success: Column::Success, U8 -> &'a [u8];
        /// `[B]` Returns the actions that the environment read in the responses.
        action: Column::Action, Bytes -> Bytes<'a>;
        /// `[B]` Returns the numbers of the tasks, the same in all iterations.
        task: Column::Task, U64 -> &'a [u64];
        /// `[B]` Returns the seeds of the episodes' resets.
        seed: Column::Seed, U64 -> &'a [u64];
        /// `[B]` Returns the environment's kinds of task.
        task_type: Column::TaskType, Bytes -> Bytes<'a>;
        /// `[T]` Returns the ids of the response tokens.
        token: Column::Token, U32 -> &'a [u32];
        /// `[T]` Returns the entropies of the policy that sampled.
        entropy: Column::Entropy, F32 -> &'a [f32];
        /// `[B]` Returns the observations that the prompts were made of.
        observation: Column::Observation, Bytes -> Bytes<'a>;
        /// `[B]` Returns the admissible actions, separated by line feeds.
        admissible: Column::Admissible, Bytes -> Bytes<'a>;
        /// `[B]` Returns the returns of one greedy episode from the start of each row's group.
        greedy_return: Column::GreedyReturn, F64 -> &'a [f64];
        /// `[T]` Returns the log-probs under the teacher.
        teacher_logprobs: Column::TeacherLogprobs, F32 -> &'a [f32];
    }

    /// `[B]` Returns a number of the environment's info; NaN where there is none.
    pub fn info(&self, name: &str) -> Result<&'a [f64]> {
        match self.column(&Column::Info(name.to_string()))? {
            View::F64(entries) => Ok(entries),
            _ => Err(anyhow!("column info.{name} has entries of another kind")),
        }
    }

    /// Returns the split of the tasks.
    pub fn split(&self) -> Result<&'a str> {
        match self.column(&Column::Split)? {
            View::Bytes(split) if split.len() == 1 => split.text(0),
            _ => Err(anyhow!("column split has entries of another kind")),
        }
    }

    /// Returns the number of the iteration, from 1.
    pub fn iteration(&self) -> Result<u64> {
        match self.column(&Column::Iteration)? {
            View::U64([iteration]) => Ok(*iteration),
            _ => Err(anyhow!("column iteration has entries of another kind")),
        }
    }

    /// Returns the hidden states after a layer, the mean over the last tokens before the response.
    pub fn hidden(&self, layer: i32, tokens: u32) -> Result<Hidden<'a>> {
        match self.column(&Column::Hidden { layer, tokens })? {
            View::F32(data) => Ok(Hidden { data, size: data.len() / self.len().max(1) }),
            _ => Err(anyhow!("column hidden.{layer} has entries of another kind")),
        }
    }

    fn column(&self, column: &Column) -> Result<View<'a>> {
        let (_, view) = (self.asked.iter().find(|(asked, _)| asked == column))
            .with_context(|| format!("column `{column}` was not asked for; name it in `Columns::columns`"))?;
        view.with_context(|| format!("this run has no column `{column}`"))
    }
}

impl<'a> Rows<'a> {
    /// Returns the number of rows, B.
    pub fn len(&self) -> usize {
        self.group.len()
    }

    /// Returns true if there is no row.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty()
    }

    /// Returns the range of a row's tokens in the token columns.
    pub fn tokens(&self, row: usize) -> Range<usize> {
        self.token_offsets[row] as usize..self.token_offsets[row + 1] as usize
    }

    /// Returns the critic's values of a row, one more than tokens: the value after the last token is not zero.
    pub fn values_of(&self, row: usize) -> Option<&'a [f32]> {
        let Range { start, end } = self.tokens(row);
        self.values.map(|values| &values[start + row..=end + row])
    }

    /// Borrows the rows that the host passes.
    ///
    /// # Safety
    /// `rows` is as nestor_plugin.h describes it and stays unchanged for `'a`.
    pub(crate) unsafe fn from_ffi(rows: &'a ffi::Rows, asked: &'a [(Column, Option<View<'a>>)]) -> Result<Self> {
        let (b, t) = (usize::try_from(rows.rows)?, usize::try_from(rows.tokens)?);
        // SAFETY: the caller's promise; lengths are the header's.
        let view = unsafe {
            let optional = |data: *const f32, len| (!data.is_null()).then(|| ffi::slice(data, len));
            let anchors = (!rows.anchor_offsets.is_null()).then(|| {
                let offsets = ffi::slice(rows.anchor_offsets, b + 1);
                Bytes { data: ffi::slice(rows.anchor_data, offsets[b] as usize), offsets }
            });
            Self {
                group: ffi::slice(rows.group, b),
                episode: ffi::slice(rows.episode, b),
                step: ffi::slice(rows.step, b),
                sequence: ffi::slice(rows.sequence, b),
                span_start: ffi::slice(rows.span_start, b),
                span_length: ffi::slice(rows.span_length, b),
                reward: ffi::slice(rows.reward, b),
                penalty: ffi::slice(rows.penalty, b),
                valid: ffi::slice(rows.valid, b),
                terminated: ffi::slice(rows.terminated, b),
                truncated: ffi::slice(rows.truncated, b),
                anchors,
                duplicate_of: ffi::slice(rows.duplicate_of, b),
                token_offsets: ffi::slice(rows.token_offsets, b + 1),
                token_rewards: ffi::slice(rows.token_rewards, t),
                values: optional(rows.values, t + b),
                logprobs: optional(rows.logprobs, t),
                ref_logprobs: optional(rows.ref_logprobs, t),
                asked,
            }
        };
        for (column, entries) in asked {
            entries.map_or(Ok(()), |entries| entries.check(column, b, t))?;
        }
        ensure!(view.token_offsets[b] as usize == t, "token_offsets end at {}, not at {t}", view.token_offsets[b]);
        Ok(view)
    }
}
