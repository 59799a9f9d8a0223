//! The list of games: files of a folder, in the layout that alfworld-download leaves, or generated ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::files::{self, SMALL};
use serde::Deserialize;

use crate::engine::{Game, GameFile};
use crate::generate::{Package, Size, generate};
use crate::task_type::TaskType;

const GAME: &str = "game.tw-pddl";
const TRAJECTORY: &str = "traj_data.json";

/// The splits of AlfredTWEnv.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// For training (3,553 games).
    Train,
    /// Other tasks in the rooms of training (140 games).
    EvalInDistribution,
    /// Tasks in other rooms (134 games).
    EvalOutOfDistribution,
}

impl Split {
    pub const ALL: [Split; 3] = [Split::Train, Split::EvalInDistribution, Split::EvalOutOfDistribution];

    /// Returns its name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::EvalInDistribution => "eval_in_distribution",
            Split::EvalOutOfDistribution => "eval_out_of_distribution",
        }
    }

    /// Returns its folder in the data.
    pub fn folder(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::EvalInDistribution => "valid_seen",
            Split::EvalOutOfDistribution => "valid_unseen",
        }
    }

    /// Parses the name that recipes use.
    pub fn from_name(name: &str) -> Result<Split> {
        let found = Split::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| nestor_plugin::unknown_split(name, &Split::ALL.map(Split::name)))
    }
}

/// A game in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: PathBuf,
    /// Its folder, relative to the searched one.
    pub name: String,
    /// Its kind of task, if known.
    pub task_type: Option<TaskType>,
}

#[derive(Debug)]
pub struct Generator {
    /// Domain and grammar.
    pub package: Package,
    /// Size of their households.
    pub size: Size,
    /// Number of games for training, and for each other split.
    pub counts: [u64; 2],
    /// Base of the seeds.
    pub seed: u64,
    /// Their kinds of task, taken in turn.
    pub task_types: Vec<TaskType>,
}

/// The source of games.
#[derive(Debug)]
pub enum Games {
    /// One list for every split.
    Same(Vec<Entry>),
    /// A list per split, in the order of [`Split::ALL`], and the folder for the message about an empty one.
    PerSplit([Vec<Entry>; 3], PathBuf),
    /// Made when they are played.
    Generated(Generator),
}

/// A game that can be played, with its labels.
pub struct Chosen {
    /// Content of its file.
    pub file: GameFile,
    /// Name in records.
    pub name: String,
    /// Location, for messages.
    pub place: String,
    /// Its kind of task, if known.
    pub task_type: Option<TaskType>,
}

impl Games {
    /// Finds the games of a file or a folder.
    ///
    /// # Errors
    /// Nothing there, no game there, or a file that is marked as unsolvable.
    pub fn find(path: &Path, task_types: &[TaskType]) -> Result<Games> {
        let about = || format!("games: {}", path.display());
        if fs::metadata(path).with_context(about)?.is_file() {
            let file = GameFile::read(path).context("games")?;
            ensure!(file.solvable != Some(false), "games: {} is marked unsolvable: take another game", path.display());
            Game::new(&file).with_context(about)?;
            return Ok(Games::Same(vec![single(path, task_types)?]));
        }
        let roots = roots(path).with_context(about)?;
        if roots.is_empty() {
            let (entries, skipped) = scan(&[path.to_owned()], task_types, false)?;
            ensure!(
                !entries.is_empty(),
                "games: no game in {} that can be played ({skipped}): give a game.tw-pddl, a folder of games, or the \
                 folder that alfworld-download filled",
                path.display()
            );
            return Ok(Games::Same(entries));
        }
        let mut lists = [const { Vec::new() }; 3];
        let mut reasons = String::new();
        for (list, split) in lists.iter_mut().zip(Split::ALL) {
            let folders: Vec<PathBuf> = roots.iter().map(|r| r.join(split.folder())).filter(|f| f.is_dir()).collect();
            let skipped;
            (*list, skipped) = scan(&folders, task_types, true)?;
            reasons += &format!("; {}: {skipped}", split.folder());
        }
        ensure!(
            lists.iter().any(|l| !l.is_empty()),
            "games: no game in {} that can be played{reasons}; a game needs game.tw-pddl (with `solvable` true) and \
             traj_data.json",
            path.display()
        );
        Ok(Games::PerSplit(lists, path.to_owned()))
    }

    /// Returns the number of games in a split.
    pub fn count(&self, split: &str) -> Result<u64> {
        let split = Split::from_name(split)?;
        match self {
            Games::Same(entries) => Ok(entries.len() as u64),
            Games::PerSplit(lists, path) => {
                let count = lists[split as usize].len() as u64;
                ensure!(
                    count > 0,
                    "split `{}` has no games: {} has none in {}",
                    split.name(),
                    path.display(),
                    split.folder()
                );
                Ok(count)
            }
            Games::Generated(generator) => Ok(generator.counts[usize::from(split != Split::Train)]),
        }
    }

    /// Returns a game of a split.
    pub fn choose(&self, split: &str, task: u64) -> Result<Chosen> {
        let count = self.count(split)?;
        ensure!(task < count, "there is no task {task}: split {split} has {count} of them");
        let split = Split::from_name(split)?;
        let entry = match self {
            Games::Same(entries) => &entries[task as usize],
            Games::PerSplit(lists, _) => &lists[split as usize][task as usize],
            Games::Generated(generator) => return Ok(generator.make(split, task)),
        };
        let Entry { path, name, task_type } = entry.clone();
        Ok(Chosen { file: GameFile::read(&path)?, name, place: path.display().to_string(), task_type })
    }
}

impl Generator {
    /// Seeds of different splits are 2^40 apart, those of different `seed`s 2^42.
    fn make(&self, split: Split, task: u64) -> Chosen {
        let task_type = self.task_types[(task % self.task_types.len() as u64) as usize];
        let seed = self.seed.wrapping_shl(42).wrapping_add((split as u64) << 40).wrapping_add(task);
        let game = generate(task_type, self.size, seed);
        let name = format!("{}/{}", game.name, game.trial);
        Chosen { file: game.content(&self.package), place: name.clone(), name, task_type: Some(task_type) }
    }
}

/// Returns the folders that contain the splits' folders: the one given, or its subfolders that begin with `json_` (the
/// original archives unpack side by side).
fn roots(path: &Path) -> Result<Vec<PathBuf>> {
    let has_splits = |folder: &Path| Split::ALL.iter().any(|s| folder.join(s.folder()).is_dir());
    if has_splits(path) {
        return Ok(vec![path.to_owned()]);
    }
    let mut roots = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("json_") && has_splits(&entry.path()) {
            roots.push(entry.path());
        }
    }
    roots.sort();
    Ok(roots)
}

/// Counts of skipped games, by reason.
#[derive(Default)]
struct Skipped {
    files: usize,
    no_game: usize,
    no_labels: usize,
    unsolved: usize,
    other_type: usize,
    unsupported: usize,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Skipped { files, no_game, no_labels, unsolved, other_type, unsupported } = self;
        write!(
            f,
            "of {files} games {no_game} without {GAME}, {no_labels} without {TRAJECTORY}, {unsolved} not known to be \
             solvable, {other_type} of another task type, {unsupported} with movable or sliced objects"
        )
    }
}

/// Lists the games of some folders, by the rules of AlfredTWEnv, sorted by path. Archives may hold the two files of a
/// game in folders of the same name. `strict` leaves out games without `traj_data.json`.
fn scan(folders: &[PathBuf], task_types: &[TaskType], strict: bool) -> Result<(Vec<Entry>, Skipped)> {
    let mut found: BTreeMap<PathBuf, (Option<PathBuf>, Option<PathBuf>)> = BTreeMap::new();
    for folder in folders {
        walk(folder, &mut |file| {
            let Ok(relative) = file.parent().unwrap_or(file).strip_prefix(folder) else { return };
            let entry = found.entry(relative.to_owned()).or_default();
            if file.ends_with(GAME) {
                entry.0 = Some(file.to_owned());
            } else {
                entry.1 = Some(file.to_owned());
            }
        })?;
    }
    let (mut entries, mut skipped) = (Vec::new(), Skipped { files: found.len(), ..Skipped::default() });
    for (relative, (game, trajectory)) in found {
        let name = relative.display().to_string();
        if name.contains("movable") || name.contains("Sliced") {
            skipped.unsupported += 1;
            continue;
        }
        let Some(path) = game else {
            skipped.no_game += 1;
            continue;
        };
        let task_type = match &trajectory {
            Some(trajectory) => match TaskType::from_name(&type_of(trajectory)?) {
                Ok(known) => Some(known),
                Err(_) => {
                    skipped.other_type += 1;
                    continue;
                }
            },
            None if strict => {
                skipped.no_labels += 1;
                continue;
            }
            None => type_in(&name),
        };
        let wanted = task_type.map_or(task_types.len() == TaskType::ALL.len(), |t| task_types.contains(&t));
        if !wanted {
            skipped.other_type += 1;
        } else if is_solvable(&path)? {
            entries.push(Entry { path, name, task_type });
        } else {
            skipped.unsolved += 1;
        }
    }
    Ok((entries, skipped))
}

fn walk(folder: &Path, found: &mut impl FnMut(&Path)) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("games: {}", folder.display()))? {
        let path = entry.with_context(|| format!("games: {}", folder.display()))?.path();
        if path.is_dir() {
            walk(&path, found)?;
        } else if path.ends_with(GAME) || path.ends_with(TRAJECTORY) {
            found(&path);
        }
    }
    Ok(())
}

fn single(path: &Path, task_types: &[TaskType]) -> Result<Entry> {
    let trajectory = path.with_file_name(TRAJECTORY);
    let task_type = match trajectory.is_file() {
        true => {
            let name = type_of(&trajectory)?;
            Some(TaskType::from_name(&name).with_context(|| trajectory.display().to_string())?)
        }
        false => type_in(&path.to_string_lossy()),
    };
    if let Some(found) = task_type.filter(|t| !task_types.contains(t)) {
        bail!("games: {} is of type {}, which task_types excludes", path.display(), found.name());
    }
    let folder = path.parent().unwrap_or(path);
    let names = folder.components().rev().take(2).map(|c| c.as_os_str().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.reverse();
    Ok(Entry { path: path.to_owned(), name: names.join("/"), task_type })
}

/// Returns the task type that a game's `traj_data.json` names, which may be one that ALFWorld does not play.
fn type_of(path: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Trajectory {
        task_type: String,
    }
    let about = || path.display().to_string();
    let text = files::read_to_string(path, SMALL).with_context(about)?;
    let trajectory: Trajectory = serde_json::from_str(&text).with_context(about)?;
    Ok(trajectory.task_type)
}

/// Returns the task type whose name occurs in a path.
fn type_in(path: &str) -> Option<TaskType> {
    TaskType::ALL.into_iter().find(|t| path.contains(t.name()))
}

/// Returns true if a game's file is marked as solvable.
fn is_solvable(path: &Path) -> Result<bool> {
    #[derive(Deserialize)]
    struct Solvable {
        #[serde(default)]
        solvable: Option<bool>,
    }
    let about = || path.display().to_string();
    let text = files::read_to_string(path, SMALL).with_context(about)?;
    let file: Solvable = serde_json::from_str(&text).with_context(about)?;
    Ok(file.solvable == Some(true))
}
