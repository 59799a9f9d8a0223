//! The columns of a file of questions.

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::Deserialize;

/// Names of columns. A dot leads into a nested column, as in `reward_model.ground_truth.target`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Columns {
    /// The column of the question, a text. If omitted: `question`, or verl's `env_kwargs.question`.
    pub question: Option<String>,
    /// The column of the right answers, a list of texts, the text of such a list, or one text. If omitted: `golden_answers`, or
    /// verl's `reward_model.ground_truth.target`, `env_kwargs.ground_truth.target`, or either without `target`.
    pub answers: Option<String>,
    /// The column of the data set, a text. If omitted: `data_source`, or verl's `env_kwargs.data_source`.
    pub source: Option<String>,
}

/// A row of a file.
#[derive(Debug, PartialEq)]
pub struct Row {
    /// Counted from 1. In JSON Lines it is the line.
    pub number: u64,
    pub question: String,
    pub answers: Vec<String>,
    /// Absent if the file has no such column.
    pub source: Option<String>,
}

/// A column that a question needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Question,
    Answers,
    Source,
}

impl Column {
    /// The name of its key in `questions.columns`.
    pub fn key(self) -> &'static str {
        match self {
            Column::Question => "question",
            Column::Answers => "answers",
            Column::Source => "source",
        }
    }

    /// The names that a file may use, of which the first that it has counts: the given one, or the usual ones.
    pub fn names(self, given: &Columns) -> Vec<&str> {
        let (given, usual): (_, &[&str]) = match self {
            Column::Question => (&given.question, &["question", "env_kwargs.question"]),
            Column::Answers => {
                let verl = "reward_model.ground_truth.target";
                let others = ["env_kwargs.ground_truth.target", "reward_model.ground_truth", "env_kwargs.ground_truth"];
                (&given.answers, &["golden_answers", verl, others[0], others[1], others[2]])
            }
            Column::Source => (&given.source, &["data_source", "env_kwargs.data_source"]),
        };
        given.as_deref().map_or_else(|| usual.to_vec(), |name| vec![name])
    }

    /// Returns the column that `find` has for one of the names. A file needs no column of sources unless one is named.
    ///
    /// # Errors
    /// If there is none; `had` lists those that the file has.
    pub fn locate<T>(
        self,
        given: &Columns,
        find: impl Fn(&str) -> Option<T>,
        had: impl Fn() -> String,
    ) -> Result<Option<T>> {
        let names = self.names(given);
        match names.iter().find_map(|name| find(name)) {
            Some(found) => Ok(Some(found)),
            None if self == Column::Source && given.source.is_none() => Ok(None),
            None => bail!(
                "there is no column {}: name it in questions.columns.{}; there are {}",
                names.join(" or "),
                self.key(),
                had()
            ),
        }
    }
}
