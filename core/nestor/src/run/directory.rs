//! The directory of a run: its choice, the claim of one process group to it, and its removal after a refused start.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nestor_host::lock::{Lock, LockKind};
use nestor_mirror::FETCHING;

use super::TrainArgs;
use super::file_system::{PROBE, check_file_system};
use crate::error::InputError;
pub use crate::files::RECIPE;
use crate::input_error;

/// The folder of directories with a default name.
const RUNS: &str = "runs";

/// The folder, in the run directory, of the model that a run made or copied when it began.
pub const MODEL: &str = "model";
/// The same while it is made.
pub const PARTIAL_MODEL: &str = "model.partial";

/// The lock of a run. Rank 0 holds it.
pub const LOCK: LockKind = LockKind { file: "run.lock", option: "--run-dir" };

/// Time that a resumed run waits for the lock: a stopped one may be about to end.
const RESUME_PATIENCE: Duration = Duration::from_secs(2);
/// Time that a restarted run waits for it: the kernel frees a killed process's memory before its locks.
pub const RESTART_PATIENCE: Duration = Duration::from_secs(60);

/// A run directory that this process has claimed. Dropping it frees the claim; a new directory without results is removed.
#[derive(Debug)]
pub struct RunDir {
    pub path: PathBuf,
    /// It holds a run to continue.
    pub resumes: bool,
    /// It was empty.
    fresh: bool,
    /// Directories that this process made, outermost first.
    made: Vec<PathBuf>,
    kept: bool,
    /// Dropped last.
    lock: Option<Lock>,
}

impl RunDir {
    /// Makes the run directory and locks it, or locks that of the run to resume.
    pub fn claim(name: &str, args: &TrainArgs) -> Result<Self> {
        let Some(dir) = &args.run_dir else { return Self::first_free(name) };
        let resumes = (args.resume || args.restarted) && is_run(dir);
        if args.resume && !args.restarted && !resumes {
            return Err(holds_no_run(dir));
        }
        let made = make(dir)?;
        let patience = match (args.restarted, resumes) {
            (true, _) => RESTART_PATIENCE,
            (false, true) => RESUME_PATIENCE,
            (false, false) => Duration::ZERO,
        };
        let mut claimed = Self::locked(dir, made, patience)?;
        // The process that held the lock may have begun a run.
        let resumes = resumes || args.restarted && is_run(dir);
        claimed.resumes = resumes;
        claimed.fresh = !resumes && is_empty(dir);
        if !resumes {
            check_free(dir, args)?;
        }
        check_file_system(dir)?;
        Ok(claimed)
    }

    /// Makes and locks the first `runs/NAME[-N]` that does not exist. Only one of two processes makes a directory.
    fn first_free(name: &str) -> Result<Self> {
        loop {
            let (path, made) = make_first_free(name)?;
            // Another process may have been given this directory by name.
            match Self::locked(&path, made, Duration::ZERO) {
                Ok(mut claimed) if is_empty(&path) => {
                    claimed.fresh = true;
                    check_file_system(&path)?;
                    return Ok(claimed);
                }
                Ok(_) => {}
                Err(error) if error.is::<InputError>() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn locked(dir: &Path, made: Vec<PathBuf>, patience: Duration) -> Result<Self> {
        let lock = Some(Lock::take(dir, LOCK, patience)?);
        Ok(Self { path: dir.into(), resumes: false, fresh: false, made, kept: false, lock })
    }

    /// Keeps the directory whatever happens: it holds results, or the log of a failure.
    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let worthless = self.fresh && !self.kept && !has_results(&self.path);
        if worthless {
            // An entry that cannot be removed stays: the user must see the refusal itself.
            for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
                let path = entry.path();
                let _ = match entry.file_type() {
                    _ if entry.file_name() == LOCK.file => Ok(()),
                    Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
                    _ => fs::remove_file(&path),
                };
            }
        }
        drop(self.lock.take());
        if worthless {
            remove_empty(&self.made);
        }
    }
}

/// The directory that [`RunDir::claim`] would claim now, and whether it holds a run to continue. Makes nothing.
pub fn place(name: &str, args: &TrainArgs) -> Result<(PathBuf, bool)> {
    let Some(dir) = &args.run_dir else {
        let free = (1..).map(|number| numbered(name, number)).find(|dir| !dir.exists());
        return Ok((free.context("no number is free")?, false));
    };
    let resumes = (args.resume || args.restarted) && is_run(dir);
    if args.resume && !args.restarted && !resumes {
        return Err(holds_no_run(dir));
    }
    if !resumes {
        check_free(dir, args)?;
    }
    Ok((dir.clone(), resumes))
}

/// `runs/NAME` for 1, then `runs/NAME-2`.
fn numbered(name: &str, number: u32) -> PathBuf {
    Path::new(RUNS).join(if number == 1 { name.to_string() } else { format!("{name}-{number}") })
}

/// The file of an iteration's episodes in a folder of the run directory.
pub fn episodes_file(dir: &Path, folder: &str, iteration: u64) -> PathBuf {
    dir.join(folder).join(format!("iteration-{iteration:06}.jsonl"))
}

/// True if a directory holds a run.
pub fn is_run(dir: &Path) -> bool {
    dir.join(RECIPE).exists()
}

/// True if a run in this directory has recorded or saved anything.
pub fn has_results(dir: &Path) -> bool {
    let rows = fs::metadata(dir.join("metrics.jsonl")).is_ok_and(|found| found.len() > 0);
    rows || fs::read_dir(dir.join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some())
}

/// Refuses a directory for a new run that holds something; where an earlier start may have died early, something else than that start's.
pub fn check_free(dir: &Path, args: &TrainArgs) -> Result<()> {
    let left = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let staged = name.to_string_lossy().starts_with(&format!(".{MODEL}."));
        staged || [LOCK.file, PROBE, MODEL, PARTIAL_MODEL].iter().any(|left| name == *left)
    };
    let mut entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let fetching = args.restarted && dir.join(FETCHING).exists(); // a start that was killed while it fetched the run from its mirror
    if fetching || args.restarted && entries.all(left) { Ok(()) } else { check_empty(dir) }
}

/// Refuses a directory for a new run that holds something.
pub fn check_empty(dir: &Path) -> Result<()> {
    if is_empty(dir) {
        return Ok(());
    }
    let reason = if is_run(dir) { "already holds a run: resume it with --resume" } else { "is not empty: clear it" };
    Err(input_error!("{} {reason}, or choose another --run-dir", dir.display()))
}

/// True if there is nothing but a lock, or no directory.
fn is_empty(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.all(|entry| [LOCK.file, PROBE].iter().any(|ours| entry.file_name() == *ours))
}

/// Makes the first `runs/NAME[-N]` that does not exist. Returns it and the directories made.
pub fn make_first_free(name: &str) -> Result<(PathBuf, Vec<PathBuf>)> {
    let mut made = make(Path::new(RUNS))?;
    for number in 1.. {
        let path = numbered(name, number);
        match fs::create_dir(&path) {
            Ok(()) => {
                made.push(path.clone());
                return Ok((path, made));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot_make(&path, error)),
        }
    }
    unreachable!("a folder has a free number")
}

/// Makes a directory and those above it. Returns those that did not exist, outermost first.
pub fn make(dir: &Path) -> Result<Vec<PathBuf>> {
    let missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let mut made: Vec<PathBuf> = dir.ancestors().take_while(missing).map(Path::to_path_buf).collect();
    made.reverse();
    fs::create_dir_all(dir).map_err(|error| cannot_make(dir, error))?;
    Ok(made)
}

/// Removes directories that are empty, innermost first.
pub fn remove_empty(made: &[PathBuf]) {
    for dir in made.iter().rev() {
        // One that another run uses is not empty.
        let _ = fs::remove_dir(dir);
    }
}

fn cannot_make(dir: &Path, error: std::io::Error) -> anyhow::Error {
    use ErrorKind::{AlreadyExists, InvalidFilename, NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        AlreadyExists | InvalidFilename | NotADirectory | PermissionDenied | ReadOnlyFilesystem => {
            input_error!("cannot make the run directory {}: {error}; choose another --run-dir", dir.display())
        }
        _ => anyhow::Error::new(error).context(format!("making {}", dir.display())),
    }
}

/// The run directory of a command that may be started again, where it names none: that of the recipe's file, or `runs/NAME`.
pub fn default_dir(name: &str, recipe: Option<&Path>) -> PathBuf {
    own_dir(recipe).unwrap_or_else(|| numbered(name, 1))
}

/// The directory of the run whose `recipe.yaml` this is.
fn own_dir(recipe: Option<&Path>) -> Option<PathBuf> {
    let dir = recipe.filter(|file| file.file_name().is_some_and(|name| name == RECIPE))?.parent()?;
    is_run(dir).then(|| dir.into())
}

/// The directory to resume where the command names none: that of the recipe's file, or the only run of this name (of any
/// name without a recipe).
pub fn to_resume(recipe: Option<&Path>) -> Result<PathBuf> {
    if let Some(dir) = own_dir(recipe) {
        return Ok(dir);
    }
    let name = recipe.map(|file| file.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    let mut runs = runs(name.as_deref()).with_context(|| format!("looking for runs in {RUNS}"))?;
    match (runs.pop(), runs.len()) {
        (Some(run), 0) => Ok(run),
        (None, _) => {
            let runs = Path::new(RUNS);
            Err(holds_no_run(&name.map_or(runs.into(), |name| runs.join(format!("{name}[-N]")))))
        }
        (Some(last), _) => {
            const SHOWN: usize = 8;
            let mut list: Vec<String> =
                [last].iter().chain(runs.iter().rev()).take(SHOWN).map(|dir| dir.display().to_string()).collect();
            if runs.len() >= SHOWN {
                list.push("…".into());
            }
            Err(input_error!(
                "--resume could mean {} runs: {}; name one with --run-dir",
                runs.len() + 1,
                list.join(", ")
            ))
        }
    }
}

/// The runs with a default name of this recipe, or all runs with a default name; the newest last.
fn runs(name: Option<&str>) -> std::io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(RUNS) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_run(&path) && name.is_none_or(|name| is_numbered(&file_name, name)) {
            found.push((fs::metadata(path.join(RECIPE))?.modified()?, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// True for `NAME` and `NAME-N`.
fn is_numbered(file_name: &str, name: &str) -> bool {
    let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    file_name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(number))
}

fn holds_no_run(dir: &Path) -> anyhow::Error {
    input_error!(
        "{} holds no run and so no checkpoint to resume: leave out --resume, or name the run with --run-dir",
        dir.display()
    )
}
