//! Checks of a recipe before a run writes anything, and the directory and checkpoint that the run starts from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::directory::RunDir;
use super::record::PluginFiles;
use super::resume::{Resumption, resumption};
use super::{TrainArgs, identity};
use crate::agent::count_tasks;
use crate::dist::{Comm, from_root};
use crate::input_error;
use crate::model::{Config, new};
use crate::plugin::{Estimator, Kind, Limits, Plugins, SharedEnv};
use crate::recipe::Recipe;
use crate::shard::Ranks;
use crate::tokenizer::{Tokenizer, Turns};
use crate::track::{Console, WandbRun};

/// A recipe that a run can start with, and the directory that it has claimed.
pub struct Checked {
    pub dir: PathBuf,
    /// At rank 0.
    pub claim: Option<RunDir>,
    pub shared_env: SharedEnv,
    pub estimator: Estimator,
    /// Number of training tasks.
    pub tasks: u64,
    pub resumption: Option<Resumption>,
    /// Warnings for the run's log.
    pub warnings: Vec<String>,
}

impl Checked {
    pub fn plugins(&self) -> PluginFiles<'_> {
        PluginFiles { environment: self.shared_env.file(), estimator: self.estimator.file() }
    }
}

/// Refuses a recipe that cannot run, claims the run directory, and finds the checkpoint to resume from. Fills in the
/// plugins' defaults. A refused recipe leaves nothing behind.
pub fn check(recipe: &mut Recipe, name: &str, args: &TrainArgs, ranks: &Ranks, console: &Console) -> Result<Checked> {
    let comm = &*ranks.comm;
    from_root(comm, || WandbRun::check(recipe.wandb.as_ref()))?;
    let limits = Limits { timeout: Duration::from_secs(recipe.env.timeout_s), stop: ranks.stop.clone() };
    let plugins = Plugins::discover()?.with_limits(limits);
    let shared_env = plugins.environment(&recipe.env.choice()).context("recipe key `env`")?;
    let estimator = plugins.estimator(&recipe.estimator).context("recipe key `estimator`")?;
    recipe.env.config = plugins.with_defaults(Kind::Environment, &recipe.env.choice())?.config;
    recipe.estimator = plugins.with_defaults(Kind::Estimator, &recipe.estimator)?;
    identity::compare(comm, recipe, PluginFiles { environment: shared_env.file(), estimator: estimator.file() })?;
    check_critic(recipe, &estimator)?;
    let tasks = count_tasks(&shared_env, "rollout.split", &recipe.rollout.split)?;
    count_tasks(&shared_env, "eval.split", &recipe.eval.split)?;
    check_model_path(recipe)?;

    let mut claim = None;
    let (dir, resumes) = from_root(comm, || {
        let claimed = claim.insert(RunDir::claim(name, args)?);
        Ok((claimed.path.clone(), claimed.resumes))
    })?;
    let resumption = match resumes {
        true => resumption((recipe, &plugins), &dir, args, comm, console)?,
        false => None,
    };
    let warnings = plugins.shadow_warnings([shared_env.file(), estimator.file()])?;
    Ok(Checked { dir, claim, shared_env, estimator, tasks, resumption, warnings })
}

/// True if the run needs the policy before reinforcement learning.
pub fn needs_reference(recipe: &Recipe, estimator: &Estimator) -> bool {
    recipe.update.kl.is_some() || recipe.update.kl_in_reward.is_some() || estimator.needs().reference
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
