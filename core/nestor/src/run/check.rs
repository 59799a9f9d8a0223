//! The directory and checkpoint that a run starts from. The checks of its recipe are in `preflight`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::directory::{MODEL, RunDir, place};
use super::record::PluginFiles;
use super::resume::{Resumption, resumption};
use super::{TrainArgs, identity, mirror};
use crate::plugin::{Kind, Loss};
use crate::preflight::{Conditions, Ready, preflight};
use crate::ranks::{agree, from_root};
use crate::recipe::Recipe;
use crate::shard::Ranks;
use crate::track::Console;

/// A recipe that a run can start with, and the directory that it has claimed.
pub struct Checked {
    pub dir: PathBuf,
    /// At rank 0.
    pub claim: Option<RunDir>,
    /// The opened plugins, the number of tasks, and warnings.
    pub ready: Ready,
    pub resumption: Option<Resumption>,
}

impl Checked {
    pub fn plugins(&self) -> PluginFiles<'_> {
        files(&self.ready)
    }
}

/// Refuses a recipe that cannot run, claims the run directory, and finds the checkpoint to resume from. Fills in the
/// plugins' defaults. A refused recipe leaves nothing behind.
pub fn check(recipe: &mut Recipe, name: &str, args: &TrainArgs, ranks: &Ranks, console: &Console) -> Result<Checked> {
    let comm = &*ranks.comm;
    let (dir, resumes) = from_root(comm, || mirror::look(recipe, args).and_then(|()| place(name, args)))?;
    let made = if resumes { made_model(&dir) } else { None };
    let conditions = Conditions {
        ranks: comm.world(),
        root: comm.rank() == 0,
        dir: Some(&dir),
        made: made.as_deref(),
        elsewhere: None,
        stop: ranks.stop.clone(),
    };
    let mut findings = preflight(recipe, &conditions);
    if conditions.root {
        let warning = args.memory_warning.and_then(|warning| warning(recipe, &findings, conditions.ranks));
        findings.warnings.extend(warning);
    }
    let (ready, outcome) = match findings.ready() {
        Ok(ready) => (Some(ready), Ok(())),
        Err(error) => (None, Err(error)),
    };
    agree(comm, outcome)?; // rank 0 checks more than the others, and its error is theirs
    let mut ready = ready.context("a rank without an error is ready")?;
    if made.is_some() {
        ready.tokenizer = None; // not a new one, and already in its folder
    }
    for env in recipe.env.all_mut() {
        env.config = ready.plugins.with_defaults(Kind::Environment, &env.choice())?.config;
    }
    if let Some(loss) = &mut recipe.loss {
        loss.config = ready.plugins.with_defaults(Kind::Loss, loss)?.config;
    }
    recipe.estimator.config = ready.plugins.with_defaults(Kind::Estimator, &recipe.estimator.choice())?.config;
    identity::compare(comm, recipe, files(&ready))?;

    let mut claim = None;
    let (dir, resumes) = from_root(comm, || {
        let claimed = claim.insert(RunDir::claim(name, args)?);
        Ok((claimed.path.clone(), claimed.resumes))
    })?;
    let resumption = match resumes {
        true => resumption((recipe, &ready.plugins), &dir, args, comm, console)?,
        false => None,
    };
    Ok(Checked { dir, claim, ready, resumption })
}

/// The folder of the model that the run in a directory made when it began; none if it has not made one.
pub fn made_model(dir: &Path) -> Option<PathBuf> {
    let folder = dir.join(MODEL);
    folder.join("config.json").exists().then_some(folder)
}

/// The plugin files that a run uses.
pub fn files(ready: &Ready) -> PluginFiles<'_> {
    let loss = ready.loss.as_ref().map(Loss::file);
    PluginFiles { environments: &ready.environments, estimator: ready.estimator.file(), loss }
}
