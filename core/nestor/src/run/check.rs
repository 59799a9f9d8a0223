//! The directory and checkpoint that a run starts from. The checks of its recipe are in `preflight`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::TrainArgs;
use crate::checkpoint::Checkpoints;
use crate::dist::{Comm, agree, from_root};
use crate::input_error;
use crate::preflight::{Conditions, Ready, preflight};
use crate::recipe::Recipe;
use crate::track::Console;

/// A recipe that a run can start with, before anything is written.
pub struct Checked {
    pub dir: PathBuf,
    /// The opened plugins, the number of tasks, and warnings.
    pub ready: Ready,
    /// The checkpoint to resume from.
    pub checkpoint: Option<PathBuf>,
}

/// Refuses a recipe that cannot run, and finds the checkpoint to resume from. Writes nothing.
pub fn check(recipe: &Recipe, name: &str, args: &TrainArgs, comm: &dyn Comm, console: &Console) -> Result<Checked> {
    let dir = from_root(comm, || run_dir(name, args))?;
    let resume = args.resume || (args.restarted && is_run(&dir));
    let made = if resume { made_model(&dir) } else { None };
    let conditions = Conditions {
        ranks: comm.world(),
        root: comm.rank() == 0,
        dir: Some(&dir),
        made: made.as_deref(),
        elsewhere: None,
    };
    let (ready, outcome) = match preflight(recipe, &conditions).ready() {
        Ok(ready) => (Some(ready), Ok(())),
        Err(error) => (None, Err(error)),
    };
    agree(comm, outcome)?; // rank 0 checks more than the others, and its error is theirs
    let mut ready = ready.context("a rank without an error is ready")?;
    if made.is_some() {
        ready.tokenizer = None; // not a new one, and already in its folder
    }
    let checkpoint = if resume { newest_checkpoint(recipe, &dir, comm, console)? } else { None };
    Ok(Checked { dir, ready, checkpoint })
}

/// The newest undamaged checkpoint of the run; none where the run has not written one yet.
fn newest_checkpoint(recipe: &Recipe, dir: &Path, comm: &dyn Comm, console: &Console) -> Result<Option<PathBuf>> {
    let newest = Checkpoints::new(dir).newest(comm, |line| console.warn(line))?;
    if newest.is_some() {
        check_same_run(recipe, dir)?;
    } else if comm.rank() == 0 {
        console.warn("there is no checkpoint yet; the run starts from the beginning");
    }
    Ok(newest)
}

/// The folder of the model that the run in a directory made when it began; none if it has not made one.
pub fn made_model(dir: &Path) -> Option<PathBuf> {
    let folder = dir.join("model");
    folder.join("config.json").exists().then_some(folder)
}

/// True if a directory holds a run.
fn is_run(dir: &Path) -> bool {
    dir.join("recipe.yaml").exists()
}

/// The run directory: the one asked for, or the first free `runs/<name>[-n]`; with `--resume` the last existing one.
pub fn run_dir(name: &str, args: &TrainArgs) -> Result<PathBuf> {
    if let (Some(dir), true) = (&args.run_dir, args.restarted) {
        return Ok(dir.clone());
    }
    let candidates =
        || (1..).map(|n| PathBuf::from(if n == 1 { format!("runs/{name}") } else { format!("runs/{name}-{n}") }));
    let dir = match (&args.run_dir, args.resume) {
        (Some(dir), _) => dir.clone(),
        (None, false) => candidates().find(|dir| !dir.exists()).unwrap_or_default(),
        (None, true) => {
            candidates().take_while(|dir| dir.exists()).last().unwrap_or_else(|| format!("runs/{name}").into())
        }
    };
    if args.resume && !is_run(&dir) {
        return Err(input_error!(
            "{} holds no run and so no checkpoint to resume: leave out --resume, or name the run with --run-dir",
            dir.display()
        ));
    }
    let holds_something = std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
    if !args.resume && holds_something {
        return Err(input_error!(
            "{} {}, or choose another --run-dir",
            dir.display(),
            if is_run(&dir) { "already holds a run: resume it with --resume" } else { "is not empty: clear it" }
        ));
    }
    Ok(dir)
}

/// Refuses to resume with another seed, model, environment or compute type than the saved recipe has.
fn check_same_run(recipe: &Recipe, dir: &Path) -> Result<()> {
    let saved = crate::recipe::load(&dir.join("recipe.yaml"), &[])?;
    let same = [
        ("seed", saved.seed == recipe.seed),
        ("model", saved.model == recipe.model),
        ("env", saved.env == recipe.env),
        ("dtype", saved.dtype == recipe.dtype),
    ];
    match same.iter().find(|(_, same)| !same) {
        None => Ok(()),
        Some((key, _)) => Err(input_error!(
            "recipe key `{key}` differs from the run in {}: resume with the same value, or start another run",
            dir.display()
        )),
    }
}
