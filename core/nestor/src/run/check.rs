//! Checks of a recipe before a run writes anything, and the directory and checkpoint that the run starts from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::TrainArgs;
use crate::agent::count_tasks;
use crate::checkpoint::Checkpoints;
use crate::dist::{Comm, from_root};
use crate::input_error;
use crate::model::{Config, new};
use crate::plugin::{Estimator, Limits, Plugins, SharedEnv};
use crate::recipe::Recipe;
use crate::shard::Ranks;
use crate::tokenizer::{Tokenizer, Turns};
use crate::track::{Console, WandbRun};

/// A recipe that a run can start with, before anything is written.
pub struct Checked {
    pub dir: PathBuf,
    pub shared_env: SharedEnv,
    pub estimator: Estimator,
    /// Number of training tasks.
    pub tasks: u64,
    /// The checkpoint to resume from.
    pub checkpoint: Option<PathBuf>,
}

/// Refuses a recipe that cannot run, and finds the checkpoint to resume from. Writes nothing.
pub fn check(recipe: &Recipe, name: &str, args: &TrainArgs, ranks: &Ranks, console: &Console) -> Result<Checked> {
    let comm = &*ranks.comm;
    from_root(comm, || WandbRun::check(recipe.wandb.as_ref()))?;
    let dir = from_root(comm, || run_dir(name, args))?;
    let resume = args.resume || (args.restarted && is_run(&dir));
    let limits = Limits { timeout: Duration::from_secs(recipe.env.timeout_s), stop: ranks.stop.clone() };
    let plugins = Plugins::discover()?.with_limits(limits);
    let shared_env = plugins.environment(&recipe.env.choice()).context("recipe key `env`")?;
    let estimator = plugins.estimator(&recipe.estimator).context("recipe key `estimator`")?;
    check_critic(recipe, &estimator)?;
    let tasks = count_tasks(&shared_env, "rollout.split", &recipe.rollout.split)?;
    count_tasks(&shared_env, "eval.split", &recipe.eval.split)?;
    check_model_path(recipe)?;
    let checkpoint = if resume { newest_checkpoint(recipe, &dir, comm, console)? } else { None };
    Ok(Checked { dir, shared_env, estimator, tasks, checkpoint })
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

/// Checks the model that the recipe names against its tokenizer and the recipe.
fn check_model_path(recipe: &Recipe) -> Result<()> {
    let Some(path) = recipe.model.path.as_deref().map(Path::new) else { return Ok(()) };
    let (config, tokenizer) = (Config::load(path)?, Tokenizer::load(path)?);
    new::check_vocabulary(&config, &tokenizer)
        .with_context(|| format!("recipe key `model.path`: {}", path.display()))?;
    let tokenizer = tokenizer.with_thinking(recipe.rollout.thinking).context("recipe key `rollout.thinking`")?;
    check_conversation(recipe, &config, &tokenizer)
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

/// Refuses a critic section that the estimator does not use, and its absence where the estimator asks for values.
fn check_critic(recipe: &Recipe, estimator: &Estimator) -> Result<()> {
    let id = estimator.id();
    match (estimator.needs().values, &recipe.critic) {
        (true, None) => Err(input_error!(
            "recipe key `estimator.plugin`: `{id}` asks for a critic's values, and the recipe has no critic; add the \
             section `critic: {{}}` (or --set critic={{}})"
        )),
        (false, Some(_)) => Err(input_error!(
            "recipe key `critic`: estimator `{id}` does not ask for values, so the critic would be trained for nothing; \
             remove the section (or --set critic=null)"
        )),
        _ => Ok(()),
    }
}

/// Refuses to resume with another seed, model, environment or compute type than the saved recipe has.
fn check_same_run(recipe: &Recipe, dir: &Path) -> Result<()> {
    let saved = crate::recipe::load(&dir.join("recipe.yaml"), &[])?;
    let same = [
        ("seed", saved.seed == recipe.seed),
        ("model", saved.model == recipe.model),
        ("env", saved.env.choice() == recipe.env.choice()),
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

/// For a transcript, checks that the chat template continues turn by turn and that the model has enough positions.
fn check_conversation(recipe: &Recipe, config: &Config, tokenizer: &Tokenizer) -> Result<()> {
    let Some(tokens) = recipe.rollout.max_sequence_tokens else { return Ok(()) };
    let limit = config.max_position_embeddings;
    if i64::try_from(tokens).is_ok_and(|tokens| tokens <= limit) {
        return Turns::new(tokenizer).map(drop);
    }
    Err(input_error!(
        "recipe key `rollout.max_sequence_tokens` is {tokens}, but the model's max_position_embeddings is {limit}; \
         lower it, or choose another model"
    ))
}
