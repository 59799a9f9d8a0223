//! Resuming a run: the checkpoint to continue from, and the changes of the recipe that are accepted.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::TrainArgs;
use super::directory::{RECIPE, has_results};
use super::ledger::State;
use crate::agent::{TaskCounts, TaskDraws};
use crate::checkpoint::{Checkpoints, Unfinished};
use crate::input_error;
use crate::plugin::{Kind, Plugins};
use crate::ranks::{Comm, from_root};
use crate::recipe::{Changes, Recipe, load};
use crate::track::Console;

/// The records that a run which starts from the beginning moves aside. W&B's are each in a folder of their own.
const MOVED: [&str; 11] = [
    "metrics.jsonl",
    "steps.jsonl",
    "warm_start.jsonl",
    "histograms.jsonl",
    "outcomes.jsonl",
    "panel.json",
    "log.txt",
    "rollouts",
    "evaluations",
    "images",
    "tensorboard",
];

/// The start of a resumed run, before anything is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Resumption {
    pub checkpoint: PathBuf,
    /// One line for each key of the recipe that changes.
    pub changes: Vec<String>,
    /// The user allows other training tasks than those that the run began with.
    allow_other_tasks: bool,
    /// The user allows another estimator than the one that the run began with.
    pub allow_other_estimator: bool,
    /// Later evaluations do not compare with earlier ones.
    change_evaluation: bool,
}

/// Finds the newest undamaged checkpoint and refuses a recipe that it cannot be resumed with. None where a launcher
/// restarts a run that has no checkpoint yet. All ranks call it together.
pub fn resumption(
    (recipe, plugins): (&Recipe, &Plugins),
    dir: &Path,
    args: &TrainArgs,
    comm: &dyn Comm,
    console: &Console,
) -> Result<Option<Resumption>> {
    let checkpoints = Checkpoints::new(dir);
    let checkpoint = match &args.resume_from {
        // A launcher's restart continues what this life has saved.
        Some(name) if !args.restarted => Some(checkpoints.named(comm, name)?),
        _ => checkpoints.newest(comm, |line| console.warn(line))?,
    };
    match checkpoint {
        Some(checkpoint) => from_root(comm, || accept(recipe, plugins, dir, args, checkpoint)).map(Some),
        None => from_root(comm, || start_again(dir, args, console)).map(|()| None),
    }
}

fn accept(recipe: &Recipe, plugins: &Plugins, dir: &Path, args: &TrainArgs, checkpoint: PathBuf) -> Result<Resumption> {
    let path = dir.join(RECIPE);
    let mut before = load(&path, &[]).with_context(|| format!("the recipe of the run in {}", dir.display()))?;
    // A default of a newer build of the same plugin is no change of the recipe.
    for (older, env) in before.env.all_mut().iter_mut().zip(recipe.env.all()) {
        if older.plugin == env.plugin {
            older.config = plugins.with_defaults(Kind::Environment, &older.choice())?.config;
        }
    }
    if before.estimator.plugin == recipe.estimator.plugin {
        before.estimator.config = plugins.with_defaults(Kind::Estimator, &before.estimator.choice())?.config;
    }
    if let (Some(older), Some(loss)) = (&mut before.loss, &recipe.loss)
        && older.plugin == loss.plugin
    {
        older.config = plugins.with_defaults(Kind::Loss, older)?.config;
    }
    let changes = Changes::new(&before, recipe, &args.allow_change)?;
    let update = matches!(Checkpoints::unfinished(&checkpoint)?, Some(Unfinished::Update(_)));
    changes
        .check(update.then(|| iteration_of(&checkpoint) + 1))
        .with_context(|| format!("resuming {}", dir.display()))?;
    Ok(Resumption {
        checkpoint,
        changes: changes.changes.iter().map(ToString::to_string).collect(),
        allow_other_tasks: changes.allow_other_tasks(),
        allow_other_estimator: changes.allow_other_estimator(),
        change_evaluation: changes.change_evaluation(),
    })
}

/// The number of finished iterations in a checkpoint's name.
fn iteration_of(checkpoint: &Path) -> u64 {
    let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    let digits: String = name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Lets a restarted run without a checkpoint begin again, beside what it recorded. Refuses any other.
fn start_again(dir: &Path, args: &TrainArgs, console: &Console) -> Result<()> {
    if !args.restarted {
        return Err(input_error!(
            "{} has no checkpoint to resume from; its files stay as they are: start another run with another --run-dir, or \
             remove the directory to begin again",
            dir.display()
        ));
    }
    console.warn("there is no checkpoint yet; the run starts from the beginning");
    if has_results(dir) {
        let aside = (1..).map(|n| dir.join(format!("before-restart-{n}"))).find(|path| !path.exists());
        let aside = aside.context("no number is free")?;
        fs::create_dir(&aside).with_context(|| format!("making {}", aside.display()))?;
        for name in MOVED {
            let path = dir.join(name);
            if path.exists() {
                fs::rename(&path, aside.join(name)).with_context(|| format!("moving {}", path.display()))?;
            }
        }
    }
    Ok(())
}

impl Resumption {
    /// Fits the state of the checkpoint to the recipe that the run continues with.
    pub fn fit(&self, state: &mut State, interrupted: bool, recipe: &Recipe, tasks: &TaskCounts) -> Result<()> {
        let least = state.iteration + u64::from(interrupted);
        if recipe.iterations < least {
            return Err(input_error!(
                "recipe key `iterations` is {}, but the run in {} has begun iteration {least}: set it to {least} or more",
                recipe.iterations,
                self.checkpoint.display()
            ));
        }
        let fresh = TaskDraws::new(tasks, recipe.seed);
        if !state.tasks.is_like(&fresh) {
            if !self.allow_other_tasks {
                let before = state.tasks.counts();
                let other = tasks.each().iter().zip(before.each()).position(|(now, before)| now != before);
                let number = other.unwrap_or_default();
                return Err(input_error!(
                    "split `{}`{} has {} tasks, and had {} when the run began: put the old ones back, start another run, or draw \
                     from all of them by --allow-change rollout.split",
                    recipe.split_of(number),
                    if recipe.env.is_list() {
                        format!(" of environment {}", recipe.env.all()[number].name())
                    } else {
                        "".into()
                    },
                    tasks.each()[number],
                    before.each()[number]
                ));
            }
            state.tasks = fresh;
        }
        if self.change_evaluation {
            state.comparable_from = state.iteration + 1;
            state.best = None; // does not compare with those to come
        }
        Ok(())
    }
}

/// Removes the episodes of evaluations after the checkpoint, as the rows of their iterations are removed.
pub fn drop_later_evaluations(dir: &Path, iteration: u64) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir.join("evaluations")) else { return Ok(()) };
    for entry in entries {
        let path = entry.context("reading the folder of evaluations")?.path();
        let number = path.file_stem().and_then(|name| name.to_str()?.strip_prefix("iteration-")?.parse().ok());
        if number.is_some_and(|number: u64| number > iteration) {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;
    use crate::recipe::load_resolved;

    const RECIPE: &str = "
iterations: 4
seed: 1
model: {path: model}
env: {plugin: maze}
estimator: {plugin: stars}
rollout: {tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 8, max_response_tokens: 8}
update: {mini_batch: 1, lr: 1}
eval: {tasks: 1}
";

    fn resumption(allow_other_tasks: bool) -> Resumption {
        let checkpoint = "run/checkpoints/iteration-000003+000002".into();
        Resumption {
            checkpoint,
            changes: Vec::new(),
            allow_other_tasks,
            allow_other_estimator: false,
            change_evaluation: false,
        }
    }

    #[test]
    fn the_number_of_tasks_changes_only_with_permission() -> Result<()> {
        let recipe = load_resolved("recipe", RECIPE)?;
        let mut draws = TaskDraws::new(&10.into(), 1);
        draws.next(7, &[1.0], None);
        let mut state = State { iteration: 3, ..State::new(draws.clone(), None) };
        resumption(false).fit(&mut state, false, &recipe, &10.into())?;
        assert_eq!(state.tasks, draws);
        let error = resumption(false).fit(&mut state, false, &recipe, &12.into()).expect_err("other tasks");
        assert!(error.is::<InputError>() && error.to_string().contains("has 12 tasks, and had 10"), "{error}");
        resumption(true).fit(&mut state, false, &recipe, &12.into())?;
        assert_eq!(state.tasks, TaskDraws::new(&12.into(), 1));
        Ok(())
    }

    #[test]
    fn a_begun_iteration_cannot_be_left_out() -> Result<()> {
        let recipe = |iterations: u64| load_resolved("recipe", &RECIPE.replacen('4', &iterations.to_string(), 1));
        let mut state = State { iteration: 3, ..State::new(TaskDraws::new(&10.into(), 1), None) };
        assert!(resumption(false).fit(&mut state, false, &recipe(2)?, &10.into()).is_err());
        assert!(resumption(false).fit(&mut state, false, &recipe(3)?, &10.into()).is_ok());
        assert!(resumption(false).fit(&mut state, true, &recipe(3)?, &10.into()).is_err());
        assert_eq!(iteration_of(&resumption(false).checkpoint), 3);
        Ok(())
    }
}
