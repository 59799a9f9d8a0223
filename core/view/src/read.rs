//! Reads the content of a run directory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ViewError;

/// A run, without its episodes.
pub(crate) struct RunDir {
    pub dir: PathBuf,
    /// One row per iteration, ascending.
    pub rows: BTreeMap<u64, Map<String, Value>>,
    /// The resolved recipe as written; empty if there is none.
    pub recipe: String,
    pub recipe_value: Value,
    /// Files of episodes by iteration.
    pub rollouts: BTreeMap<u64, RolloutFile>,
}

/// A file of episodes.
pub(crate) struct RolloutFile {
    pub path: PathBuf,
    pub bytes: u64,
}

impl RunDir {
    /// Reads everything but the episodes.
    pub fn open(dir: &Path) -> Result<Self, ViewError> {
        let metrics = dir.join("metrics.jsonl");
        let rows = text(&metrics)?;
        let recipe = text(&dir.join("recipe.yaml"))?;
        if rows.is_none() && recipe.is_none() {
            return Err(ViewError::NotARun(dir.to_owned()));
        }
        let recipe = recipe.unwrap_or_default();
        let recipe_value = serde_yaml::from_str(&recipe)
            .map_err(|error| ViewError::Recipe { path: dir.join("recipe.yaml"), reason: error.to_string() })?;
        Ok(Self {
            dir: dir.to_owned(),
            rows: parse_rows(&metrics, &rows.unwrap_or_default())?,
            recipe,
            recipe_value,
            rollouts: rollout_files(&dir.join("rollouts"))?,
        })
    }
}

/// Reads a text file; `None` if it does not exist. A character cut by a kill is replaced.
fn text(path: &Path) -> Result<Option<String>, ViewError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::NotADirectory => Ok(None),
        Err(source) => Err(ViewError::Read { path: path.to_owned(), source }),
    }
}

/// Parses rows by iteration. The last row of an iteration wins, because a resumed run writes it again.
fn parse_rows(path: &Path, text: &str) -> Result<BTreeMap<u64, Map<String, Value>>, ViewError> {
    let lines: Vec<&str> = text.lines().collect();
    let mut rows = BTreeMap::new();
    for (number, line) in (1..).zip(&lines) {
        match parse_row(line) {
            Ok((iteration, row)) => {
                rows.insert(iteration, row);
            }
            // The last line may be cut: the run was killed or is writing it.
            Err(_) if number == lines.len() => {}
            Err(reason) => return Err(ViewError::Row { path: path.to_owned(), line: number, reason }),
        }
    }
    Ok(rows)
}

fn parse_row(line: &str) -> Result<(u64, Map<String, Value>), String> {
    let mut row: Map<String, Value> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let iteration = row.remove("iteration").and_then(|value| value.as_u64()).ok_or("it has no iteration")?;
    Ok((iteration, row))
}

fn rollout_files(dir: &Path) -> Result<BTreeMap<u64, RolloutFile>, ViewError> {
    let failed = |source| ViewError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let digits = name.and_then(|name| name.strip_prefix("iteration-")?.strip_suffix(".jsonl"));
        if let Some(iteration) = digits.and_then(|digits| digits.parse().ok()) {
            let bytes = fs::metadata(&path).map_err(failed)?.len();
            files.insert(iteration, RolloutFile { path, bytes });
        }
    }
    Ok(files)
}

/// An episode as in a rollout file; its text borrows from the file's.
#[derive(Debug, Deserialize)]
pub(crate) struct StoredEpisode<'a> {
    pub group: u64,
    pub episode: u64,
    #[serde(default)]
    pub task: u64,
    #[serde(default)]
    pub seed: u64,
    #[serde(default)]
    pub won: bool,
    #[serde(default, borrow)]
    pub task_type: Option<Cow<'a, str>>,
    #[serde(default, rename = "return")]
    pub episode_return: Option<f64>,
    #[serde(borrow)]
    pub steps: Vec<StoredStep<'a>>,
}

/// One turn of an episode. Fields that older runs lack may be missing.
#[derive(Debug, Deserialize)]
pub(crate) struct StoredStep<'a> {
    #[serde(borrow)]
    pub prompt: Cow<'a, str>,
    #[serde(borrow)]
    pub response: Cow<'a, str>,
    #[serde(default, borrow)]
    pub action: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub admissible: Option<Vec<Text<'a>>>,
    #[serde(default)]
    pub reward: Option<f64>,
    #[serde(default)]
    pub valid: Option<bool>,
    #[serde(default)]
    pub terminated: bool,
    #[serde(default)]
    pub truncated: bool,
    #[serde(default, borrow)]
    pub anchor: Option<Cow<'a, str>>,
    #[serde(default)]
    pub response_tokens: u64,
    #[serde(default)]
    pub advantage: Option<f64>,
    #[serde(default, borrow)]
    pub tokens: Option<Vec<Text<'a>>>,
    #[serde(default)]
    pub logprobs: Option<Vec<Option<f64>>>,
    #[serde(default)]
    pub parts: Option<BTreeMap<String, Option<f64>>>,
}

/// Text in a list: serde borrows a bare `Cow` only as a field.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// The episodes of a file's content.
pub(crate) struct Episodes<'a> {
    /// Each with the bytes of its line.
    pub episodes: Vec<(StoredEpisode<'a>, usize)>,
    /// Lines that are not an episode: damaged, cut, or being written.
    pub damaged: usize,
}

impl<'a> Episodes<'a> {
    pub fn parse(content: &'a [u8]) -> Self {
        let mut found = Self { episodes: Vec::new(), damaged: 0 };
        for line in content.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            match serde_json::from_slice(line) {
                Ok(episode) => found.episodes.push((episode, line.len())),
                Err(_) => found.damaged += 1,
            }
        }
        found
    }
}

/// Reads a rollout file's bytes; empty if the run has removed it meanwhile.
pub(crate) fn rollout_bytes(path: &Path) -> Result<Vec<u8>, ViewError> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|source: io::Error| ViewError::Read { path: path.to_owned(), source }),
    }
}
