//! The recipe and the models that `nestor eval` is called with.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tch::Device;

use crate::checkpoint::{Checkpoints, Source, is_checkpoint};
use crate::files::RECIPE;
use crate::input_error;
use crate::ranks::Solo;
use crate::recipe::{Recipe, changes, load};
use crate::terminal;

/// Options of `nestor eval`.
#[derive(Debug, Clone, Default)]
pub struct EvalArgs {
    /// A recipe and models, or runs and checkpoints alone.
    pub targets: Vec<PathBuf>,
    /// Further models, as [`Source::find`] finds them.
    pub models: Vec<PathBuf>,
    /// Evaluates every checkpoint of the runs, in place of the newest.
    pub all: bool,
    /// Changes of the recipe, KEY=VALUE.
    pub sets: Vec<String>,
    /// Number of tasks to play, in place of `eval.tasks`.
    pub episodes: Option<u32>,
    /// Episodes per task, in place of `eval.samples`.
    pub samples: Option<u32>,
    /// The folder for report and episodes.
    pub out: Option<PathBuf>,
    /// Another program's model that plays in place of one here.
    pub endpoint: Option<EndpointArgs>,
    /// Draws no progress line.
    pub quiet: bool,
}

/// A server of chat completions.
#[derive(Debug, Clone)]
pub struct EndpointArgs {
    /// The base URL.
    pub url: String,
    /// The model's name; by default that of the server's only model.
    pub model: Option<String>,
    /// The key that the server asks for.
    pub key: Option<String>,
}

/// Keys that change how a model plays: of the prompts, the environment and the numbers.
const PLAY: &[&str] = &[
    "dtype",
    "env.config",
    "env.plugin",
    "rollout.history",
    "rollout.max_prompt_tokens",
    "rollout.max_response_tokens",
    "rollout.max_sequence_tokens",
    "rollout.max_steps",
    "rollout.template",
    "rollout.thinking",
    "rollout.truncation",
];

/// An evaluation to make.
#[derive(Debug)]
pub struct Targets {
    /// The recipe that chooses tasks, seeds and noise, the same for all models.
    pub recipe: Recipe,
    /// None where an endpoint's model plays.
    pub models: Vec<Source>,
}

impl Targets {
    /// Reads the positional arguments: a recipe and models, or runs and checkpoints alone. These play by the recipe of the
    /// first one's run.
    pub fn of(args: &EvalArgs) -> Result<Self> {
        let [first, rest @ ..] = &args.targets[..] else {
            return Err(input_error!("name a recipe, or a run or checkpoint to evaluate"));
        };
        let (recipe, named) = match first.is_dir() {
            true => (of_run(&args.targets, &args.sets)?, &args.targets[..]),
            false if !first.exists() && !looks_like_a_recipe(first) => {
                return Err(input_error!("there is no recipe, run or checkpoint {}", first.display()));
            }
            false => (load(first, &args.sets)?, rest),
        };
        if args.endpoint.is_some() {
            return match rest {
                [] => Ok(Self { recipe, models: Vec::new() }),
                [model, ..] => {
                    Err(input_error!("--endpoint: its model plays, so that {} does not; leave it out", model.display()))
                }
            };
        }
        let named: Vec<&PathBuf> = named.iter().chain(&args.models).collect();
        if named.is_empty() {
            return Ok(Self { models: vec![of_recipe(&recipe, args.all)?], recipe });
        }
        let models = named.into_iter().map(|named| if args.all { every(named) } else { newest(named) });
        Ok(Self { models: models.collect::<Result<Vec<_>>>()?.concat(), recipe })
    }
}

fn looks_like_a_recipe(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// The recipe of the first run among the targets. Warns of other runs whose models learned to play differently.
fn of_run(targets: &[PathBuf], sets: &[String]) -> Result<Recipe> {
    let mut runs: Vec<PathBuf> = targets.iter().filter_map(|target| run_of(target)).collect();
    runs.dedup();
    let [first, others @ ..] = &runs[..] else {
        return Err(input_error!(
            "{}: neither a run nor a checkpoint inside one, so there is no recipe to play by; name one first: \
             nestor eval RECIPE {0}",
            targets.first().map_or(String::new(), |target| target.display().to_string())
        ));
    };
    let recipe = load(&first.join(RECIPE), sets)?;
    for run in others {
        warn_of_differences((first, &recipe), (run, &load(&run.join(RECIPE), sets)?))?;
    }
    Ok(recipe)
}

/// The run directory that a path names, or that holds the checkpoint it names.
fn run_of(target: &Path) -> Option<PathBuf> {
    if target.join(RECIPE).exists() {
        return Some(target.into());
    }
    let checkpoint = target.canonicalize().ok().filter(|path| is_checkpoint(path))?;
    let run = checkpoint.parent()?.parent()?;
    run.join(RECIPE).exists().then(|| run.into())
}

fn warn_of_differences((first, play_by): (&Path, &Recipe), (run, recipe): (&Path, &Recipe)) -> Result<()> {
    let shapes_play = |key: &str| PLAY.iter().any(|shaping| key.starts_with(shaping));
    let differences = changes(recipe, play_by)?.into_iter().filter(|change| shapes_play(&change.key));
    let differences: Vec<String> = differences.map(|change| change.to_string()).collect();
    if !differences.is_empty() {
        let (first, run, keys) = (first.display(), run.display(), differences.join(", "));
        terminal::warn(&format!("warning: {run} plays by the recipe of {first}, which changes {keys}"));
    }
    Ok(())
}

/// The model that the recipe names.
fn of_recipe(recipe: &Recipe, all: bool) -> Result<Source> {
    if all {
        return Err(input_error!("--all evaluates every checkpoint of a run: name a run directory"));
    }
    let path = recipe.model.path.as_ref().ok_or_else(|| {
        input_error!(
            "recipe key `model.new`: a run of this recipe makes its own model; name the model to evaluate by --model (a run \
             directory, a checkpoint such as RUN/checkpoints/iteration-000100, a Hugging Face folder, or a Hub id)"
        )
    })?;
    Source::find(path.as_ref()).context("recipe key `model.path`")
}

fn newest(named: &Path) -> Result<Vec<Source>> {
    Ok(vec![Source::find(named)?])
}

/// Every undamaged checkpoint of a run.
fn every(run: &Path) -> Result<Vec<Source>> {
    let warn = |line: &str| terminal::warn(&format!("warning: {line}"));
    let whole = Checkpoints::new(run).whole(&Solo { device: Device::Cpu }, warn)?;
    if whole.is_empty() {
        return Err(input_error!("--all: {} is no run directory with a checkpoint", run.display()));
    }
    Ok(whole.into_iter().map(Source::Checkpoint).collect())
}
