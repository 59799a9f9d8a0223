//! Files of a run directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nestor_plugin::files::{self, LARGE};
use serde_json::{Map, Value};

use crate::ReadError;

/// Files of which one makes a directory a run, or the output of `nestor eval --out`.
const MARKS: [&str; 3] = ["metrics.jsonl", "recipe.yaml", "evaluation.json"];

/// The deepest run below the folder of a sweep, which holds VARIANT/SEED.
const DEPTH: usize = 2;

/// Paths with each folder of runs, such as that of a sweep, replaced by the runs in it, in the order of their names.
/// Hidden folders do not count. Any other path stays as it is.
pub fn expand(paths: &[PathBuf]) -> Vec<PathBuf> {
    let of = |path: &PathBuf| match run_of(path) {
        Err(_) if path.is_dir() => Some(runs_below(path, DEPTH)).filter(|runs| !runs.is_empty()),
        _ => None,
    };
    paths.iter().flat_map(|path| of(path).unwrap_or_else(|| vec![path.clone()])).collect()
}

fn runs_below(dir: &Path, depth: usize) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let hidden = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|p| p.is_dir() && !hidden(p)).collect();
    folders.sort();
    let runs = |folder: PathBuf| match run_of(&folder) {
        Ok(run) => vec![run],
        Err(_) if depth > 1 => runs_below(&folder, depth - 1),
        Err(_) => Vec::new(),
    };
    folders.into_iter().flat_map(runs).collect()
}

/// The run directory of a path: the path itself, or that of a checkpoint within it.
pub fn run_of(path: &Path) -> Result<PathBuf, ReadError> {
    let is_run = |dir: &Path| MARKS.iter().any(|mark| dir.join(mark).is_file());
    if is_run(path) {
        return Ok(path.to_owned());
    }
    let holder = || {
        let real = path.canonicalize().ok()?;
        let checkpoints = real.ancestors().take(2).find(|dir| dir.ends_with("checkpoints"))?;
        checkpoints.parent().filter(|dir| is_run(dir)).map(Path::to_owned)
    };
    holder().ok_or_else(|| ReadError::NotARun(path.to_owned()))
}

/// Reads a text file; `None` if it does not exist. A character cut by a kill is replaced.
pub fn text(path: &Path) -> Result<Option<String>, ReadError> {
    match files::read(path, LARGE) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::NotADirectory => Ok(None),
        Err(source) => Err(ReadError::Read { path: path.to_owned(), source }),
    }
}

/// Reads the resolved recipe of a run as text and as a value; empty text and null if there is none.
pub fn recipe(dir: &Path) -> Result<(String, Value), ReadError> {
    let path = dir.join("recipe.yaml");
    let recipe = text(&path)?.unwrap_or_default();
    match serde_yaml::from_str(&recipe) {
        Ok(value) => Ok((recipe, value)),
        Err(error) => Err(ReadError::Recipe { path, reason: error.to_string() }),
    }
}

/// Reads a file of rows by iteration; none if there is no file. The last row of an iteration wins, because a resumed
/// run writes it again.
pub fn rows(path: &Path) -> Result<BTreeMap<u64, Map<String, Value>>, ReadError> {
    let text = text(path)?.unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let mut rows = BTreeMap::new();
    for (number, line) in (1..).zip(&lines) {
        match row(line) {
            Ok((iteration, row)) => {
                rows.insert(iteration, row);
            }
            // The last line may be cut: the run was killed or is writing it.
            Err(_) if number == lines.len() => {}
            Err(reason) => return Err(ReadError::Row { path: path.to_owned(), line: number, reason }),
        }
    }
    Ok(rows)
}

fn row(line: &str) -> Result<(u64, Map<String, Value>), String> {
    let mut row: Map<String, Value> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let iteration = row.remove("iteration").and_then(|value| value.as_u64()).ok_or("it has no iteration")?;
    Ok((iteration, row))
}
