//! `nestor verify`: shows that a recipe gives the same numbers again on this machine: in a second run, in a run that is killed
//! and resumed, and on several ranks.
//!
//! Every run is a child process of this program, shortened and with `deterministic: true`. The comparison needs nothing but
//! run directories, so it also serves two runs of any origin.

mod child;
mod compare;
mod difference;
mod lines;
mod plays;
mod report;
mod tensors;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_args::Play;
use nestor_args::oversubscribe::Asked;

use crate::files::RECIPE;
use crate::input_error;
use crate::ranks::launch::collect_signals;
use crate::recipe::{self, Recipe};
use crate::run::make_first_free;
use compare::{Contents, PARTS, Part, compare, compare_ranks};
use plays::{Played, Plays};
pub use report::Report;
use report::{Check, Cost, NotRun, RunSummary};

/// Options of a verification.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    pub recipe: PathBuf,
    /// `KEY=VALUE`.
    pub sets: Vec<String>,
    pub iterations: u64,
    pub ranks: u16,
    /// Start more ranks than this machine has cores or memory for.
    pub oversubscribe: bool,
    /// Moment of the kill as a share of the time between the first checkpoint and the end; drawn where there is none.
    pub kill_at: Option<f64>,
    /// The directory of all runs; by default the first free runs/verify-RECIPE.
    pub out: Option<PathBuf>,
    pub skip: Vec<Play>,
}

impl VerifyOptions {
    /// The `--set` arguments that shorten the recipe's warm-ups to half of the iterations, where they are longer than these.
    fn warmups(&self) -> Result<Vec<String>> {
        let whole = recipe::load(&self.recipe, &self.sets)?;
        let critic = whole.critic.as_ref().map_or(0, |critic| critic.warmup);
        let all = [("update.warmup", whole.update.warmup), ("critic.warmup", critic)];
        let long = all.iter().filter(|(_, warmup)| *warmup > self.iterations);
        Ok(long.map(|(key, _)| format!("{key}={}", self.iterations / 2)).collect())
    }

    /// The `--set` arguments of a shortened run with these warm-ups. The user's may lower the number of kept checkpoints.
    fn all_sets(&self, warmups: &[String], deterministic: bool) -> Vec<String> {
        let mut sets = vec![
            "checkpoint.every=1".into(),
            format!("checkpoint.keep={}", self.iterations + 2),
            "checkpoint.rollouts_every=1".into(),
        ];
        sets.extend(self.sets.iter().chain(warmups).cloned());
        sets.extend([format!("iterations={}", self.iterations), "wandb=null".into(), "tensorboard=null".into()]);
        sets.push(format!("deterministic={deterministic}"));
        sets
    }

    fn plays(&self, play: Play) -> bool {
        !self.skip.contains(&play)
    }
}

/// Runs a recipe several times and compares the runs with the first one. Writes the report as `verify.md` beside them.
pub fn verify(options: &VerifyOptions) -> Result<Report> {
    // Wrong input ends here, before a directory is made.
    if options.plays(Play::Ranks) {
        Asked { count: options.ranks.into(), name: "ranks", option: "--ranks" }.check(options.oversubscribe)?;
    }
    let warmups = options.warmups()?;
    let recipe = recipe::load(&options.recipe, &options.all_sets(&warmups, true))?;
    let signals = collect_signals()?;
    let out = match &options.out {
        Some(dir) => {
            if dir.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
                return Err(input_error!("{} is not empty: choose another --out, or clear it", dir.display()));
            }
            std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
            dir.clone()
        }
        None => {
            let name = options.recipe.file_stem().unwrap_or_default().to_string_lossy();
            make_first_free(&format!("verify-{name}"))?.0
        }
    };
    let mut plays = Plays { options, recipe: &recipe, warmups: &warmups, out: &out, signals };
    let (first, window) = plays.plain("first", &format!("{} iterations of the recipe", options.iterations), true)?;
    let mut others: Vec<(Play, Played)> = Vec::new();
    let mut not_run = Vec::new();
    for play in [Play::Again, Play::Resumed, Play::Ranks, Play::Plain].into_iter().filter(|play| options.plays(*play)) {
        let attempt = match play {
            Play::Again => Ok(plays.plain("again", "the same command again", true)?.0),
            Play::Resumed => plays.killed(window)?,
            Play::Ranks => plays.ranks(&first)?,
            Play::Plain => Ok(plays.plain("plain", "without deterministic mode", false)?.0),
        };
        match attempt {
            Ok(played) => others.push((play, played)),
            Err(why) => not_run.push(NotRun { play, why }),
        }
    }
    let mut report = assemble(&recipe, &first, &others)?;
    report.recipe = Some(options.recipe.clone());
    report.not_run = not_run;
    report.write(&out.join("verify.md"))?;
    Ok(report)
}

/// Compares two runs that exist.
pub fn compare_runs(first: &Path, other: &Path) -> Result<Report> {
    let (one, two) = (Contents::read(first)?, Contents::read(other)?);
    // Another version's recipe may have other keys.
    let dtype = recipe::load(&first.join(RECIPE), &[]).ok().map(|recipe| recipe.dtype);
    let runs = vec![RunSummary::of("first", &one)?, RunSummary::of("other", &two)?];
    Ok(Report::new(runs, checks("other", &one, &two, compare)?, dtype))
}

/// Compares the runs of a recipe with the first one.
fn assemble(recipe: &Recipe, first: &Played, others: &[(Play, Played)]) -> Result<Report> {
    let contents = Contents::read(&first.dir)?;
    let (mut runs, mut all) = (vec![RunSummary::of_played(first, &contents)?], Vec::new());
    let mut cost = Cost { seconds: first.seconds, deterministic: first.iteration_seconds()?, plain: None };
    for (play, played) in others {
        let other = Contents::read(&played.dir)?;
        runs.push(RunSummary::of_played(played, &other)?);
        cost.seconds += played.seconds;
        if *play == Play::Again {
            // The same work: the faster of both was disturbed less.
            cost.deterministic = cost.deterministic.min(played.iteration_seconds()?);
        }
        match play {
            Play::Again | Play::Resumed => all.extend(checks(played.name, &contents, &other, compare)?),
            Play::Ranks => all.extend(checks(played.name, &contents, &other, compare_ranks)?),
            Play::Plain => cost.plain = Some(played.iteration_seconds()?),
        }
    }
    let mut report = Report::new(runs, all, Some(recipe.dtype));
    report.cost = Some(cost);
    Ok(report)
}

/// Compares every part of two runs.
fn checks(
    run: &'static str,
    first: &Contents,
    other: &Contents,
    compare: fn(&Contents, &Contents, Part) -> Result<compare::Finding>,
) -> Result<Vec<Check>> {
    PARTS.into_iter().map(|part| Ok(Check { run, part, finding: compare(first, other, part)? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipes(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                // Workloads of `nestor bench` and sweeps are no recipes.
                true if path.ends_with("bench") || path.ends_with("sweeps") => {}
                true => recipes(&path, found)?,
                false => found.extend(path.extension().is_some_and(|e| e == "yaml").then_some(path)),
            }
        }
        Ok(())
    }

    #[test]
    fn every_recipe_of_the_project_can_be_verified() -> Result<()> {
        let mut found = Vec::new();
        recipes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes"), &mut found)?;
        assert!(found.len() > 30);
        for recipe in found {
            for iterations in [1, 2] {
                let (recipe, out, sets, skip) = (recipe.clone(), None, Vec::new(), Vec::new());
                let options = VerifyOptions {
                    recipe,
                    sets,
                    iterations,
                    ranks: 2,
                    kill_at: None,
                    out,
                    skip,
                    oversubscribe: false,
                };
                let sets = options.all_sets(&options.warmups()?, true);
                recipe::load(&options.recipe, &sets).with_context(|| options.recipe.display().to_string())?;
            }
        }
        Ok(())
    }
}
