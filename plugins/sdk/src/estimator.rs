//! The traits that the author of an advantage estimator implements, and the C functions generated from them.

use std::ffi::c_void;
use std::marker::PhantomData;

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::column::{Asked, Column, View};
use crate::guard::{Out, guard, utf8};
use crate::rows::Rows;
use crate::{config, ffi, stats};

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

    /// Scores rows by the first of their parts, with one weight each: every token of a row gets the weighted sum. Parts
    /// after these explain only. For each part with a weight, the metric `PART_share` is the share of rows that it
    /// reaches, where it is finite and not 0. It is 0 in rows that are alone and in groups of equal values. The weight
    /// does not count.
    ///
    /// `parts` has the names of [`Parts::NAMES`] and `[B]` entries each. Other lengths are an error.
    pub fn weighted_sum<E: Parts>(&mut self, rows: &Rows<'_>, parts: &[Vec<f64>], weights: &[f64]) -> Result<()> {
        let advantages = stats::weighted_sum(parts, weights)?;
        ensure!(advantages.len() == rows.len(), "parts have {} rows, not {}", advantages.len(), rows.len());
        for (name, part) in E::NAMES.iter().zip(parts).take(weights.len()) {
            let reached = part.iter().filter(|value| value.is_finite() && **value != 0.0).count();
            self.metric(&format!("{name}_share"), reached as f64 / rows.len() as f64);
        }
        self.broadcast(rows, &advantages);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::{Recorded, RecordedRow};
    use crate::stats::{Norm, Spread, group_advantages, group_by};
    use crate::{NoConfig, Parts};

    /// Compares the rewards of one state, and has a part without a weight.
    struct Steps;

    impl Estimator for Steps {
        const ID: &'static str = "steps";
        const DOC: &'static str = "compares the rewards of one state";
        type Config = NoConfig;

        fn open(_: NoConfig) -> Result<Self> {
            Ok(Self)
        }

        fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
            out.weighted_sum::<Self>(rows, &self.parts(rows)?, &[0.5, 2.0])
        }
    }

    impl Parts for Steps {
        const NAMES: &'static [&'static str] = &["step_advantage", "reward", "row"];

        fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
            let states: Vec<&[u8]> = (0..rows.len()).map(|row| rows.anchors.unwrap().of(row)).collect();
            let steps = group_advantages(rows.reward, &group_by(states), Norm::Std, Spread::Sample);
            Ok(vec![steps, rows.reward.to_vec(), (0..rows.len()).map(|row| row as f64).collect()])
        }
    }

    /// Shares and sums by hand: one state is met once, one has equal rewards, one has two rewards with standard deviation
    /// sqrt(2).
    #[test]
    fn shares_omit_single_rows_and_equal_groups() {
        let met = [
            ("once", 7.0),
            ("equal", 0.1),
            ("equal", 0.1),
            ("equal", 0.1),
            ("mixed", 1.0),
            ("mixed", 3.0),
            ("none", 0.0),
        ];
        let row = |(traj, &(anchor, reward)): (usize, &(&str, f64))| RecordedRow {
            traj: traj.to_string(),
            anchor: anchor.to_string(),
            reward,
            resp_len: 2,
            ..RecordedRow::default()
        };
        let rows = met.iter().enumerate().map(row).collect();
        let columns = Recorded { rows, ..Recorded::default() }.columns().unwrap();
        let (mut advantages, mut returns) = ([f32::NAN; 14], [f32::NAN; 14]);
        let mut out = Scores::new(&mut advantages, &mut returns);
        Steps.score(&columns.view(), &mut out).unwrap();
        let metrics = Value::Object(out.metrics);
        assert_eq!(metrics, serde_json::json!({ "step_advantage_share": 2.0 / 7.0, "reward_share": 6.0 / 7.0 }));
        let step = 0.5 / 2f32.sqrt();
        let want = [14.0, 0.2, 0.2, 0.2, 2.0 - step, 6.0 + step, 0.0];
        for (token, (advantage, value)) in advantages.into_iter().zip(returns).enumerate() {
            assert!((advantage - want[token / 2]).abs() < 1e-5 && value == advantage, "token {token}: {advantage}");
        }
    }

    #[test]
    fn parts_of_another_length_are_an_error() {
        let row = RecordedRow { resp_len: 1, ..RecordedRow::default() };
        let columns = Recorded { rows: vec![row; 2], ..Recorded::default() }.columns().unwrap();
        for parts in [vec![vec![1.0]; 2], vec![vec![1.0; 2]], vec![vec![1.0; 2], vec![1.0; 3]]] {
            let (mut advantages, mut returns) = ([0.0; 2], [0.0; 2]);
            let mut out = Scores::new(&mut advantages, &mut returns);
            assert!(out.weighted_sum::<Steps>(&columns.view(), &parts, &[1.0, 1.0]).is_err(), "{parts:?}");
        }
    }
}
