//! The traits that the author of an advantage estimator implements, and the C functions generated from them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use anyhow::{Context, Result, anyhow, ensure};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::column::{Asked, Bytes, Column, Hidden, View};
use crate::guard::{Out, guard, utf8};
use crate::{config, ffi};

/// Computes advantages and returns per response token from the steps of one iteration. It keeps no state between
/// iterations unless it implements [`State`].
pub trait Estimator: Sized + Send + 'static {
    /// The name that recipes use: lower case letters, digits, underscores.
    const ID: &'static str;
    /// A description in one line.
    const DOC: &'static str;
    /// The keys of `estimator.config`; derive with `#[serde(deny_unknown_fields)]`. An estimator whose keys need no
    /// check can be its own config.
    type Config: DeserializeOwned + JsonSchema;

    /// Checks the config. Errors are reported as the user's mistakes.
    fn open(config: Self::Config) -> Result<Self>;
    /// Returns the columns that it needs beyond the usual ones; none by default.
    fn needs(&self) -> Needs {
        Needs::default()
    }
    /// Fills every advantage and every return.
    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()>;
}

/// An estimator that explains its advantages by their components (extension `nestor.estimator.parts/1`), for people who
/// read episodes.
pub trait Parts: Estimator {
    /// Names of the columns: lower case letters, digits, underscores. Viewers know `episode_advantage`,
    /// `step_advantage`, `step_return` and `anchor_group` (a number that the rows of one state share).
    const NAMES: &'static [&'static str];
    /// Computes the columns, `[B]` each, of rows that were scored; NaN if a row lacks the component.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>>;
}

/// An estimator that asks for columns by name (extension `nestor.rows.columns/1`). [`Rows`] gives them back by
/// [`Rows::task`], [`Rows::action`] and so on.
pub trait Columns: Estimator {
    /// Returns the columns, each once: `[Column::Task.into(), Column::Entropy.optional()]`.
    fn columns(&self) -> Vec<Asked>;
}

/// An estimator that remembers (extension `nestor.estimator.state/1`). Its state is part of every checkpoint, so that a
/// resumed run equals one that was not interrupted.
pub trait State: Estimator {
    /// Returns all that later calls of [`Estimator::score`] depend on.
    fn save(&self) -> Result<Vec<u8>>;
    /// Takes a state that [`State::save`] returned, before the first score.
    fn load(&mut self, state: &[u8]) -> Result<()>;
}

/// The columns that an estimator needs beyond the usual ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// The critic's values: the run keeps a critic.
    pub values: bool,
    /// Anchors: the keys of the states.
    pub anchors: bool,
    /// Reference log-probs: the run keeps a reference policy.
    pub reference: bool,
}

impl Needs {
    /// Returns the flags of `nestor_plugin.h`.
    pub fn flags(self) -> u32 {
        u32::from(self.values) * ffi::NEEDS_VALUES
            + u32::from(self.anchors) * ffi::NEEDS_ANCHORS
            + u32::from(self.reference) * ffi::NEEDS_REFERENCE
    }

    /// Reads the flags of `nestor_plugin.h`; `None` if this version does not know one of them.
    pub fn from_flags(flags: u32) -> Option<Self> {
        let has = |flag| flags & flag != 0;
        let needs = Self {
            values: has(ffi::NEEDS_VALUES),
            anchors: has(ffi::NEEDS_ANCHORS),
            reference: has(ffi::NEEDS_REFERENCE),
        };
        (needs.flags() == flags).then_some(needs)
    }
}

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
    /// Keys of the states, if [`Needs::anchors`].
    pub anchors: Option<Bytes<'a>>,
    /// `[B]` The row this one is a copy of, or -1. A copy counts in group statistics, with its source's step return.
    pub duplicate_of: &'a [i64],
    /// `[B + 1]` Tokens of row `i` are `token_offsets[i]..token_offsets[i + 1]` of the token columns.
    pub token_offsets: &'a [u64],
    /// `[T]` Episode reward, penalty and KL-in-reward, each on its token.
    pub token_rewards: &'a [f64],
    /// `[T + B]` The critic's values, if [`Needs::values`]; see [`Rows::values_of`].
    pub values: Option<&'a [f32]>,
    /// `[T]` Log-probs under the policy that sampled, if recorded.
    pub logprobs: Option<&'a [f32]>,
    /// `[T]` Log-probs under the reference policy, if [`Needs::reference`].
    pub ref_logprobs: Option<&'a [f32]>,
    /// The columns that were asked for ([`Columns`]); the methods of this type read them.
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
    unsafe fn from_ffi(rows: &'a ffi::Rows, asked: &'a [(Column, Option<View<'a>>)]) -> Result<Self> {
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

/// The estimator's output: `[T]` each, NaN until written.
#[derive(Debug)]
pub struct Scores<'a> {
    /// `[T]` Advantages.
    pub advantages: &'a mut [f32],
    /// `[T]` Returns: the critic's targets, or the advantages if there is no critic.
    pub returns: &'a mut [f32],
    metrics: Map<String, Value>,
}

impl<'a> Scores<'a> {
    /// Borrows the two arrays.
    pub fn new(advantages: &'a mut [f32], returns: &'a mut [f32]) -> Self {
        Self { advantages, returns, metrics: Map::new() }
    }

    /// Adds a number to the iteration's row of metrics.jsonl, as `estimator/NAME`. Names have lower case letters, digits
    /// and underscores. A number that is not finite is left out.
    pub fn metric(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.metrics.insert(name.to_string(), value.into());
        }
    }

    /// Sets the advantage and the return of every token of row `i` to `advantages[i]`.
    pub fn broadcast(&mut self, rows: &Rows<'_>, advantages: &[f64]) {
        for (row, &advantage) in advantages.iter().enumerate() {
            self.advantages[rows.tokens(row)].fill(advantage as f32);
            self.returns[rows.tokens(row)].fill(advantage as f32);
        }
    }
}

/// The C functions for one estimator type.
pub struct Functions<E>(PhantomData<E>);

impl<E: Estimator> Functions<E> {
    /// The function table of `nestor_estimator`.
    pub const TABLE: &'static ffi::Estimator =
        &ffi::Estimator { open: Self::open, needs: Self::needs, score: Self::score, close: Self::close };

    unsafe extern "C" fn open(text: ffi::Str, sink: *mut ffi::Sink, estimator: *mut *mut c_void) -> i32 {
        // SAFETY: the host's arguments, as nestor_plugin.h has them; the estimator goes back in `close`.
        unsafe {
            guard(sink, ffi::INPUT, |_| {
                let opened = E::open(config::parse(utf8(text, "config")?)?)?;
                *estimator = Box::into_raw(Box::new(opened)).cast();
                Ok(())
            })
        }
    }

    unsafe extern "C" fn needs(estimator: *mut c_void, sink: *mut ffi::Sink, flags: *mut u32) -> i32 {
        // SAFETY: `estimator` is from `open`.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                *flags = Self::estimator(estimator).needs().flags();
                Ok(())
            })
        }
    }

    unsafe extern "C" fn score(
        estimator: *mut c_void,
        rows: *const ffi::Rows,
        sink: *mut ffi::Sink,
        advantages: *mut f32,
        returns: *mut f32,
    ) -> i32 {
        // SAFETY: `estimator` is from `open`; rows and arrays are the host's, of the lengths the header gives, and
        // the two arrays do not overlap.
        unsafe {
            guard(sink, ffi::FAILED, |text| {
                let rows = Rows::from_ffi(&*rows, &[])?;
                Self::score_rows(estimator, &rows, text, advantages, returns)
            })
        }
    }

    /// # Safety
    /// As for `score`.
    unsafe fn score_rows(
        estimator: *mut c_void,
        rows: &Rows<'_>,
        text: &mut Out<'_>,
        advantages: *mut f32,
        returns: *mut f32,
    ) -> Result<()> {
        let tokens = rows.token_rewards.len();
        if tokens == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let (estimator, mut out) = unsafe {
            let arrays =
                (std::slice::from_raw_parts_mut(advantages, tokens), std::slice::from_raw_parts_mut(returns, tokens));
            (Self::estimator(estimator), Scores::new(arrays.0, arrays.1))
        };
        estimator.score(rows, &mut out)?;
        if !out.metrics.is_empty() {
            text.text(ffi::METRICS, &Value::Object(out.metrics).to_string());
        }
        Ok(())
    }

    unsafe extern "C" fn close(estimator: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `estimator` is from `open` and never used again.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                drop(Box::from_raw(estimator.cast::<E>()));
                Ok(())
            })
        }
    }

    unsafe fn estimator<'a>(estimator: *mut c_void) -> &'a mut E {
        // SAFETY: a box of this type from `open`, used by one thread at a time.
        unsafe { &mut *estimator.cast() }
    }
}

impl<E: Parts> Functions<E> {
    /// The function table of the parts extension.
    pub const PARTS: &'static ffi::Parts = &ffi::Parts { names: Self::names, fill: Self::fill };

    unsafe extern "C" fn names(_: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: the host's sink.
        unsafe {
            guard(sink, ffi::FAILED, |out| {
                E::NAMES.iter().for_each(|name| out.text(ffi::PART, name));
                Ok(())
            })
        }
    }

    unsafe extern "C" fn fill(
        estimator: *mut c_void,
        rows: *const ffi::Rows,
        sink: *mut ffi::Sink,
        parts: *mut f64,
    ) -> i32 {
        // SAFETY: `estimator` is from `open`; rows and array are the host's, of the lengths the header gives.
        unsafe { guard(sink, ffi::FAILED, |_| Self::fill_rows(estimator, &Rows::from_ffi(&*rows, &[])?, parts)) }
    }

    /// # Safety
    /// As for `fill`.
    unsafe fn fill_rows(estimator: *mut c_void, rows: &Rows<'_>, parts: *mut f64) -> Result<()> {
        // SAFETY: the caller's promise.
        let columns = unsafe { Self::estimator(estimator) }.parts(rows)?;
        let fits = columns.len() == E::NAMES.len() && columns.iter().all(|column| column.len() == rows.len());
        ensure!(fits, "parts are not {} columns of {} rows", E::NAMES.len(), rows.len());
        for (number, column) in columns.iter().enumerate() {
            // SAFETY: the host's array has room for all columns.
            unsafe { std::ptr::copy_nonoverlapping(column.as_ptr(), parts.add(number * rows.len()), rows.len()) };
        }
        Ok(())
    }
}

impl<E: Columns> Functions<E> {
    /// The function table of the columns extension of an estimator without parts.
    pub const COLUMNS: &'static ffi::Columns =
        &ffi::Columns { names: Self::column_names, score: Self::score_columns, fill: None };

    unsafe extern "C" fn column_names(estimator: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `estimator` is from `open`.
        unsafe {
            guard(sink, ffi::FAILED, |out| {
                Self::estimator(estimator).columns().iter().for_each(|asked| out.text(ffi::COLUMN, &asked.to_string()));
                Ok(())
            })
        }
    }

    unsafe extern "C" fn score_columns(
        estimator: *mut c_void,
        rows: *const ffi::Rows,
        columns: *const ffi::Column,
        sink: *mut ffi::Sink,
        advantages: *mut f32,
        returns: *mut f32,
    ) -> i32 {
        // SAFETY: as for `score`; there are as many columns as `column_names` put.
        unsafe {
            guard(sink, ffi::FAILED, |text| {
                let asked = Self::asked(estimator, columns)?;
                Self::score_rows(estimator, &Rows::from_ffi(&*rows, &asked)?, text, advantages, returns)
            })
        }
    }

    /// # Safety
    /// `columns` are the host's, as many as `column_names` put.
    unsafe fn asked<'a>(
        estimator: *mut c_void,
        columns: *const ffi::Column,
    ) -> Result<Vec<(Column, Option<View<'a>>)>> {
        // SAFETY: the caller's promise.
        unsafe {
            let asked = Self::estimator(estimator).columns();
            let columns = ffi::slice(columns, asked.len());
            asked.into_iter().zip(columns).map(|(asked, column)| Ok((asked.column, View::from_ffi(column)?))).collect()
        }
    }
}

impl<E: Columns + Parts> Functions<E> {
    /// The function table of the columns extension of an estimator with parts.
    pub const COLUMNS_AND_PARTS: &'static ffi::Columns =
        &ffi::Columns { fill: Some(Self::fill_columns), ..*Self::COLUMNS };

    unsafe extern "C" fn fill_columns(
        estimator: *mut c_void,
        rows: *const ffi::Rows,
        columns: *const ffi::Column,
        sink: *mut ffi::Sink,
        parts: *mut f64,
    ) -> i32 {
        // SAFETY: as for `fill`; there are as many columns as `column_names` put.
        unsafe {
            guard(sink, ffi::FAILED, |_| {
                let asked = Self::asked(estimator, columns)?;
                Self::fill_rows(estimator, &Rows::from_ffi(&*rows, &asked)?, parts)
            })
        }
    }
}

impl<E: State> Functions<E> {
    /// The function table of the state extension.
    pub const STATE: &'static ffi::State = &ffi::State { save: Self::save, load: Self::load };

    unsafe extern "C" fn save(estimator: *mut c_void, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: `estimator` is from `open`.
        unsafe {
            guard(sink, ffi::FAILED, |out| {
                out.bytes(ffi::STATE, &Self::estimator(estimator).save()?);
                Ok(())
            })
        }
    }

    unsafe extern "C" fn load(estimator: *mut c_void, state: ffi::Str, sink: *mut ffi::Sink) -> i32 {
        // SAFETY: as for `save`; the bytes are the host's.
        unsafe { guard(sink, ffi::FAILED, |_| Self::estimator(estimator).load(state.bytes())) }
    }
}
