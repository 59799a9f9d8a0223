//! The columns that an estimator asks for by name (extension `nestor.rows.columns/1`): their names, kinds and numbers.
//! `nestor_plugin.h` documents the content of each.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::{ffi, suggest};

/// A column that an estimator asks for. B rows, T response tokens, E numbers of a hidden state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Column {
    /// `[B]` bytes: the anchor of the state after the step.
    NextAnchor,
    /// `[B]` 0 or 1: the episode was won.
    Success,
    /// `[B]` bytes: the action that the environment read in the response.
    Action,
    /// `[B]` number of the task in its split, the same in all iterations.
    Task,
    /// `[B]` seed of the episode's reset.
    Seed,
    /// One text: the split of the tasks.
    Split,
    /// `[B]` texts: the environment's kind of task.
    TaskType,
    /// One number: the iteration, from 1.
    Iteration,
    /// `[T]` ids of the response tokens.
    Token,
    /// `[T]` entropy of the policy that sampled, in nats.
    Entropy,
    /// `[B]` texts: the observation that the prompt was made of.
    Observation,
    /// `[B]` texts: the admissible actions, separated by line feeds.
    Admissible,
    /// `[B]` a number of the environment's info; NaN where there is none.
    Info(String),
    /// `[B]` return of one greedy episode from the start of the row's group.
    GreedyReturn,
    /// `[T]` log-probs under the teacher.
    TeacherLogprobs,
    /// `[B * E]` hidden state after a layer, the mean over the last tokens before the response.
    Hidden {
        /// Number of the layer, from 0; negative ones count from the last.
        layer: i32,
        /// Number of tokens.
        tokens: u32,
    },
}

/// Names of the columns without a part that varies.
const NAMED: [(&str, Column); 14] = [
    ("next_anchor", Column::NextAnchor),
    ("success", Column::Success),
    ("action", Column::Action),
    ("task", Column::Task),
    ("seed", Column::Seed),
    ("split", Column::Split),
    ("task_type", Column::TaskType),
    ("iteration", Column::Iteration),
    ("token", Column::Token),
    ("entropy", Column::Entropy),
    ("observation", Column::Observation),
    ("admissible", Column::Admissible),
    ("greedy_return", Column::GreedyReturn),
    ("teacher_logprobs", Column::TeacherLogprobs),
];

impl Display for Column {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Info(name) => write!(f, "info.{name}"),
            Self::Hidden { layer, tokens: 1 } => write!(f, "hidden.{layer}"),
            Self::Hidden { layer, tokens } => write!(f, "hidden.{layer}.{tokens}"),
            _ => f.write_str(NAMED.iter().find(|(_, column)| column == self).map_or("", |(name, _)| name)),
        }
    }
}

impl FromStr for Column {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Some((_, column)) = NAMED.iter().find(|(known, _)| *known == name) {
            return Ok(column.clone());
        }
        match name.split_once('.') {
            Some(("info", key)) if !key.is_empty() => Ok(Self::Info(key.to_string())),
            Some(("hidden", rest)) => {
                let (layer, tokens) = rest.split_once('.').unwrap_or((rest, "1"));
                match (layer.parse(), tokens.parse()) {
                    (Ok(layer), Ok(tokens)) if tokens > 0 => Ok(Self::Hidden { layer, tokens }),
                    _ => {
                        Err(anyhow!("column `{name}` is none: hidden.LAYER or hidden.LAYER.TOKENS, such as hidden.-8"))
                    }
                }
            }
            _ => {
                let known: Vec<&str> =
                    NAMED.iter().map(|(known, _)| *known).chain(["info.NAME", "hidden.LAYER"]).collect();
                Err(anyhow!("column `{name}` is unknown{}", suggest(name, &known)))
            }
        }
    }
}

/// A column that an estimator asks for, and whether it can do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The column.
    pub column: Column,
    /// The run may lack it.
    pub optional: bool,
}

impl From<Column> for Asked {
    fn from(column: Column) -> Self {
        Self { column, optional: false }
    }
}

impl Column {
    /// Asks for the column, but does without where a run lacks it.
    pub fn optional(self) -> Asked {
        Asked { column: self, optional: true }
    }
}

impl Display for Asked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.column, if self.optional { "?" } else { "" })
    }
}

impl FromStr for Asked {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let bare = name.strip_suffix('?');
        Ok(Self { column: bare.unwrap_or(name).parse()?, optional: bare.is_some() })
    }
}

/// Byte strings end to end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bytes<'a> {
    /// All bytes.
    pub data: &'a [u8],
    /// Offset of each string, and the end of the last.
    pub offsets: &'a [u64],
}

impl<'a> Bytes<'a> {
    /// Returns the string of a row.
    pub fn of(&self, row: usize) -> &'a [u8] {
        &self.data[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// Returns the string of a row as text.
    pub fn text(&self, row: usize) -> Result<&'a str> {
        std::str::from_utf8(self.of(row)).map_err(|_| anyhow!("an entry of row {row} is not UTF-8"))
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The hidden states of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hidden<'a> {
    /// All numbers, row by row.
    pub data: &'a [f32],
    /// Numbers of one row, E.
    pub size: usize,
}

impl<'a> Hidden<'a> {
    /// Returns the state of a row.
    pub fn of(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.size..(row + 1) * self.size]
    }
}

/// The entries of a column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the kinds of nestor_plugin.h
pub enum Values {
    Bytes { data: Vec<u8>, offsets: Vec<u64> },
    U8(Vec<u8>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Values {
    /// Joins byte strings.
    pub fn bytes<T: AsRef<[u8]>>(strings: impl IntoIterator<Item = T>) -> Self {
        let (mut data, mut offsets) = (Vec::new(), vec![0]);
        for string in strings {
            data.extend_from_slice(string.as_ref());
            offsets.push(data.len() as u64);
        }
        Self::Bytes { data, offsets }
    }

    /// Borrows the entries.
    pub fn view(&self) -> View<'_> {
        match self {
            Self::Bytes { data, offsets } => View::Bytes(Bytes { data, offsets }),
            Self::U8(data) => View::U8(data),
            Self::U32(data) => View::U32(data),
            Self::U64(data) => View::U64(data),
            Self::F32(data) => View::F32(data),
            Self::F64(data) => View::F64(data),
        }
    }
}

/// Borrowed entries of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // the kinds of nestor_plugin.h
pub enum View<'a> {
    Bytes(Bytes<'a>),
    U8(&'a [u8]),
    U32(&'a [u32]),
    U64(&'a [u64]),
    F32(&'a [f32]),
    F64(&'a [f64]),
}

impl<'a> View<'a> {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(strings) => strings.len(),
            Self::U8(data) => data.len(),
            Self::U32(data) => data.len(),
            Self::U64(data) => data.len(),
            Self::F32(data) => data.len(),
            Self::F64(data) => data.len(),
        }
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks kind and count against what the column's name fixes, for B rows and T tokens.
    pub fn check(&self, column: &Column, rows: usize, tokens: usize) -> Result<()> {
        use Column::{Action, Entropy, Hidden, Iteration, NextAnchor, Seed, Split, Task, TeacherLogprobs, Token};
        use Column::{Admissible, GreedyReturn, Info, Observation, Success, TaskType};
        let (fits, count) = match column {
            NextAnchor | Action | TaskType | Observation | Admissible => (matches!(self, Self::Bytes(_)), rows),
            Split => (matches!(self, Self::Bytes(_)), 1),
            Success => (matches!(self, Self::U8(_)), rows),
            Task | Seed => (matches!(self, Self::U64(_)), rows),
            Iteration => (matches!(self, Self::U64(_)), 1),
            Token => (matches!(self, Self::U32(_)), tokens),
            Entropy | TeacherLogprobs => (matches!(self, Self::F32(_)), tokens),
            Info(_) | GreedyReturn => (matches!(self, Self::F64(_)), rows),
            Hidden { .. } => (matches!(self, Self::F32(_)), rows * (self.len() / rows.max(1))),
        };
        ensure!(fits, "column {column} has entries of another kind");
        ensure!(self.len() == count, "column {column} has {} entries, not {count}", self.len());
        Ok(())
    }

    /// Returns the struct of the border that borrows these entries.
    pub fn to_ffi(self) -> ffi::Column {
        let plain =
            |kind, count: usize, data| ffi::Column { kind, count: count as u64, data, offsets: std::ptr::null() };
        match self {
            Self::Bytes(Bytes { data, offsets }) => ffi::Column {
                offsets: offsets.as_ptr(),
                ..plain(ffi::BYTES, offsets.len().saturating_sub(1), data.as_ptr().cast())
            },
            Self::U8(data) => plain(ffi::U8, data.len(), data.as_ptr().cast()),
            Self::U32(data) => plain(ffi::U32, data.len(), data.as_ptr().cast()),
            Self::U64(data) => plain(ffi::U64, data.len(), data.as_ptr().cast()),
            Self::F32(data) => plain(ffi::F32, data.len(), data.as_ptr().cast()),
            Self::F64(data) => plain(ffi::F64, data.len(), data.as_ptr().cast()),
        }
    }

    /// Borrows the entries that the host passes; `None` for a column that is missing.
    ///
    /// # Safety
    /// `column` is as nestor_plugin.h describes it and stays unchanged for `'a`.
    pub(crate) unsafe fn from_ffi(column: &ffi::Column) -> Result<Option<Self>> {
        if column.data.is_null() {
            return Ok(None);
        }
        let count = usize::try_from(column.count)?;
        // SAFETY: the caller's promise; the kind says which entries they are.
        let view = unsafe {
            match column.kind {
                ffi::BYTES => {
                    let offsets = ffi::slice(column.offsets, count + 1);
                    Self::Bytes(Bytes { data: ffi::slice(column.data.cast(), offsets[count] as usize), offsets })
                }
                ffi::U8 => Self::U8(ffi::slice(column.data.cast(), count)),
                ffi::U32 => Self::U32(ffi::slice(column.data.cast(), count)),
                ffi::U64 => Self::U64(ffi::slice(column.data.cast(), count)),
                ffi::F32 => Self::F32(ffi::slice(column.data.cast(), count)),
                ffi::F64 => Self::F64(ffi::slice(column.data.cast(), count)),
                kind => return Err(anyhow!("a column has the unknown kind {kind}")),
            }
        };
        Ok(Some(view))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let all = NAMED.map(|(name, _)| name).into_iter().chain(["info.score", "hidden.-8", "hidden.3.16", "task?"]);
        for name in all {
            assert_eq!(name.parse::<Asked>().unwrap().to_string(), name);
        }
        let error = |name: &str| name.parse::<Asked>().unwrap_err().to_string();
        assert!(error("sucess").starts_with("column `sucess` is unknown; did you mean `success`?"));
        for name in ["hidden.x", "hidden.1.0", "info.", "hidden."] {
            assert!(error(name).starts_with(&format!("column `{name}` is ")), "{name}");
        }
    }

    #[test]
    fn kind_and_count_are_those_of_the_name() {
        let strings = Values::bytes(["a", "", "bc"]);
        assert!(strings.view().check(&Column::Action, 3, 9).is_ok());
        assert!(strings.view().check(&Column::Action, 2, 9).is_err());
        assert!(strings.view().check(&Column::Task, 3, 9).is_err());
        let hidden = Column::Hidden { layer: -1, tokens: 1 };
        assert!(Values::F32(vec![0.0; 12]).view().check(&hidden, 3, 9).is_ok());
        assert!(Values::F32(vec![0.0; 13]).view().check(&hidden, 3, 9).is_err());
    }
}
