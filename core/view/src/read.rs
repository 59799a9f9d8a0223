//! Reads the content of a run directory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nestor_compare::{ReadError, recipe, rows, run_of, text};
use nestor_plugin::files::{self, LARGE};
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
    /// Content of `run.json`; empty for runs of versions that wrote none.
    pub info: Map<String, Value>,
    /// Files of episodes, training and evaluation.
    pub files: BTreeMap<FileKey, EpisodeFile>,
}

/// Names a file of episodes within a run. Training sorts before evaluation of the same iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileKey {
    pub iteration: u64,
    pub evaluation: bool,
}

impl Display for FileKey {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}{}", if self.evaluation { "e" } else { "" }, self.iteration)
    }
}

/// A file of episodes.
pub(crate) struct EpisodeFile {
    pub path: PathBuf,
    pub bytes: u64,
    pub changed: Option<SystemTime>,
}

impl RunDir {
    /// Reads everything but the episodes.
    pub fn open(path: &Path) -> Result<Self, ViewError> {
        let dir = &run_of(path)?;
        let (recipe, recipe_value) = recipe(dir)?;
        let mut files = episode_files(&dir.join("rollouts"), false)?;
        files.extend(episode_files(&dir.join("evaluations"), true)?);
        Ok(Self {
            dir: dir.clone(),
            rows: rows(&dir.join("metrics.jsonl"))?,
            recipe,
            recipe_value,
            info: text(&dir.join("run.json"))?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
            files,
        })
    }
}

fn episode_files(dir: &Path, evaluation: bool) -> Result<BTreeMap<FileKey, EpisodeFile>, ReadError> {
    let failed = |source| ReadError::Read { path: dir.to_owned(), source };
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
            let found = fs::metadata(&path).map_err(failed)?;
            let file = EpisodeFile { path, bytes: found.len(), changed: found.modified().ok() };
            files.insert(FileKey { iteration, evaluation }, file);
        }
    }
    Ok(files)
}

/// An episode as in a rollout file; its text borrows from the file's.
#[derive(Debug, Deserialize)]
pub(crate) struct StoredEpisode<'a> {
    pub group: u64,
    pub episode: u64,
    /// Number of this play of its task, from 0; evaluations only.
    #[serde(default)]
    pub sample: Option<u64>,
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
    /// The environment's error, with which a failed episode ended.
    #[serde(default, borrow)]
    pub failure: Option<Cow<'a, str>>,
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
    /// Paths of the observation's images in the run directory.
    #[serde(default, borrow)]
    pub images: Vec<Text<'a>>,
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
    /// Parses the lines of a file. Evaluation episodes are grouped by task, so that samples of a task are siblings.
    pub fn parse(content: &'a [u8], evaluation: bool) -> Self {
        let mut found = Self { episodes: Vec::new(), damaged: 0 };
        for line in content.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            match serde_json::from_slice(line) {
                Ok(episode) => found.episodes.push((episode, line.len())),
                Err(_) => found.damaged += 1,
            }
        }
        if evaluation {
            let mut groups = BTreeMap::new();
            for (episode, _) in &mut found.episodes {
                let next = groups.len() as u64;
                episode.group = *groups.entry(episode.task).or_insert(next);
            }
        }
        found
    }
}

/// Reads the bytes of a file of episodes; empty if the run has removed it meanwhile.
pub(crate) fn episode_bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    match files::read(path, LARGE) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|source: io::Error| ReadError::Read { path: path.to_owned(), source }),
    }
}
