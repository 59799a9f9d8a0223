//! Questions with their answers, read from files.
//!
//! **Order.** The questions of a split are in the order of the SHA-256 of their texts, so a task's number does not depend
//! on the order of files and rows. A panel is the first questions of each source in that order.

mod answers;
mod columns;
mod jsonl;
mod parquet;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
pub use columns::Columns;
use columns::Row;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The prefix of sources in files that verl's scripts made.
const VERL_PREFIX: &str = "searchR1_";

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The text.
    pub question: String,
    /// The right answers; one of them is enough. Never empty.
    pub answers: Vec<String>,
    /// The data set, such as `nq`; success is reported for each.
    pub source: String,
}

/// The files of questions, JSON Lines (`.jsonl`) or Parquet (`.parquet`).
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuestionFiles {
    /// The questions of split `train`: a path, `{path: …, source: …}`, or a list of these.
    pub train: Files,
    /// The questions of split `eval`.
    pub eval: Files,
    /// The columns to read.
    #[serde(default)]
    pub columns: Columns,
    /// Train on the questions of these sources alone, such as `[nq, hotpotqa]`. If omitted, on all.
    #[serde(default)]
    pub train_sources: Vec<String>,
    /// Evaluate on at most this many questions of each source, those whose text has the smallest SHA-256. If omitted, on all.
    #[serde(default)]
    pub eval_per_source: Option<usize>,
    /// Rows of a split with the same question and source.
    #[serde(default)]
    pub duplicates: Duplicates,
}

/// A file, or several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a path, {path: …, source: …}, or a list of these")]
pub enum Files {
    /// One file.
    One(File),
    /// Several files.
    Many(Vec<File>),
}

/// A file of questions.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a path or {path: …, source: …}")]
pub enum File {
    /// A file with a column of sources.
    Path(PathBuf),
    /// A file whose questions have one source.
    Named(NamedFile),
}

/// A file whose questions have one source.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedFile {
    /// The file.
    pub path: PathBuf,
    /// The source of all its questions, whatever its columns say.
    pub source: String,
}

/// The treatment of rows with the same question and source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// Refuse the file.
    #[default]
    Error,
    /// Make each row a task. PopQA asks the same question about different people of one name.
    Keep,
}

/// The questions of both splits.
#[derive(Debug, Clone, Default)]
pub struct Splits {
    /// The questions to train on.
    pub train: Vec<Question>,
    /// The questions to evaluate on.
    pub eval: Vec<Question>,
}

impl QuestionFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read, has no questions, or has a row without question, answers or source. The message names
    /// file, row and column.
    pub fn read(&self) -> Result<Splits> {
        let mut train = self.split(&self.train).context("questions.train")?;
        if let Some(absent) = self.train_sources.iter().find(|source| !train.iter().any(|it| &it.source == *source)) {
            let mut had: Vec<_> = train.iter().map(|it| it.source.as_str()).collect();
            had.sort_unstable();
            had.dedup();
            bail!(
                "questions.train_sources: no training question has the source `{absent}`; there are {}",
                had.join(", ")
            );
        }
        if !self.train_sources.is_empty() {
            train.retain(|it| self.train_sources.contains(&it.source));
        }
        let mut eval = self.split(&self.eval).context("questions.eval")?;
        if let Some(most) = self.eval_per_source {
            ensure!(most > 0, "questions.eval_per_source must be at least 1");
            let mut taken: HashMap<String, usize> = HashMap::new();
            eval.retain(|it| {
                let taken = taken.entry(it.source.clone()).or_default();
                *taken += 1;
                *taken <= most
            });
        }
        Ok(Splits { train, eval })
    }

    /// The questions of some files, in the order of their hashes.
    fn split(&self, files: &Files) -> Result<Vec<Question>> {
        let files = match files {
            Files::One(file) => std::slice::from_ref(file),
            Files::Many(files) => files,
        };
        ensure!(!files.is_empty(), "no file is given");
        let mut all = Vec::new();
        // The place of each question, by text and source.
        let mut seen: HashMap<(String, String), String> = HashMap::new();
        for file in files {
            let (path, source) = match file {
                File::Path(path) => (path, None),
                File::Named(NamedFile { path, source }) => (path, Some(source.as_str())),
            };
            let rows = read_rows(path, &self.columns)?;
            ensure!(!rows.is_empty(), "{}: the file has no questions", path.display());
            for row in rows {
                let place = format!("{}: row {}", path.display(), row.number);
                let question = row.check(source).with_context(|| place.clone())?;
                if self.duplicates == Duplicates::Error {
                    let key = (question.question.clone(), question.source.clone());
                    if let Some(first) = seen.insert(key, place.clone()) {
                        bail!(
                            "{place}: the question is that of {first}: remove one of them, or set questions.duplicates to keep"
                        );
                    }
                }
                all.push(question);
            }
        }
        all.sort_by_cached_key(|it| (hash(&it.question), it.source.clone(), it.answers.clone()));
        Ok(all)
    }
}

impl Row {
    /// The question of a row. The given source goes before the row's own.
    fn check(self, source: Option<&str>) -> Result<Question> {
        ensure!(!self.question.trim().is_empty(), "the question is empty");
        // An empty text would make an empty answer right.
        let answers = self.answers.into_iter().map(answers::answers).collect::<Result<Vec<_>>>()?.into_iter().flatten();
        let answers: Vec<String> = answers.filter(|answer| !answer.trim().is_empty()).collect();
        ensure!(!answers.is_empty(), "the question has no answers");
        let source = source.or(self.source.as_deref()).context(
            "there is no source: name its column in questions.columns.source, or give the file as {path: …, source: …}",
        )?;
        let source = source.strip_prefix(VERL_PREFIX).unwrap_or(source);
        ensure!(
            (1..=128).contains(&source.len()) && !source.contains(|c: char| c == '/' || c.is_control()),
            "the source {source:?} cannot be the name of a metric: take 1 to 128 bytes without slashes"
        );
        Ok(Question { question: self.question, answers, source: source.to_owned() })
    }
}

fn read_rows(path: &Path, columns: &Columns) -> Result<Vec<Row>> {
    match path.extension().and_then(|it| it.to_str()) {
        Some("jsonl") => jsonl::read(path, columns),
        Some("parquet") => parquet::read(path, columns),
        _ => bail!("{}: the name must end in .jsonl or .parquet", path.display()),
    }
}

/// The rank of a question in its split, which depends on its text alone.
fn hash(question: &str) -> [u8; 32] {
    Sha256::digest(question.as_bytes()).into()
}

/// Reads damaged files in fuzzing.
#[doc(hidden)]
pub fn read_for_fuzzing(path: &Path) -> Result<usize> {
    Ok(read_rows(path, &Columns::default())?.len())
}
