//! Checks of a recipe before a run: everything that can be known without a pass of the network.
//!
//! `nestor train` starts with them, `nestor train --check` prints their result, and `nestor plan` refuses what they refuse.
//! All problems are reported together. Nothing is written.

mod columns;
mod disk;
mod model;
mod rehearse;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nestor_mirror::Store;

pub use disk::Space;
pub use model::new_tokenizer;

use crate::agent::{
    Environments, MeasuredLengths, Rehearsal, RehearsedPrompt, RehearsedStep, TaskCounts, TaskDraws, fill_slots, plan,
    without_long,
};
use crate::checkpoint::Source;
use crate::error::InputError;
use crate::input_error;
use crate::model::Config;
use crate::plugin::{Estimator, Kind, Limits, Loss, Plugins};
use crate::recipe::{Recipe, Sharding, TooLong, Truncation, all_of};
use crate::tokenizer::Tokenizer;
use crate::track::{SlowNotice, WandbRun};
use crate::warm_start::Lessons;

/// Conditions of a run that its recipe does not hold.
#[derive(Debug, Clone)]
pub struct Conditions<'a> {
    /// Number of ranks.
    pub ranks: usize,
    /// True at the rank that rehearses episodes for all.
    pub root: bool,
    /// The run directory, on whose disk the checkpoints must fit; none where that is not known.
    pub dir: Option<&'a Path>,
    /// The folder of the model that a resumed run made when it began.
    pub made: Option<&'a Path>,
    /// The network of a plan for another machine: its model folder, plugins and environment's data need not be here.
    pub elsewhere: Option<&'a Config>,
    /// Once it is set, no call into a plugin is waited for.
    pub stop: Arc<AtomicBool>,
}

/// Results of the checks.
#[derive(Default)]
pub struct Findings {
    pub problems: Vec<anyhow::Error>,
    pub warnings: Vec<String>,
    pub plugins: Option<Plugins>,
    pub environments: Option<Environments>,
    pub estimator: Option<Estimator>,
    /// The policy loss, where a plugin gives it.
    pub loss: Option<Loss>,
    /// Number of training tasks.
    pub tasks: Option<TaskCounts>,
    /// Number of tasks of an evaluation, and of its splits.
    pub eval_tasks: Option<(u64, TaskCounts)>,
    /// The model that the recipe names, or that a resumed run made when it began; none where the run makes one, or where
    /// [`Conditions::elsewhere`] stands for it.
    pub source: Option<Source>,
    pub config: Option<Config>,
    /// The teacher's configuration.
    pub teacher: Option<Config>,
    /// That of the model of `reference`.
    pub reference: Option<Config>,
    pub tokenizer: Option<Tokenizer>,
    /// The first prompt of the first iteration; of several environments that of the first.
    pub prompt: Option<RehearsedPrompt>,
    /// The first prompts of the further environments, with their names.
    pub further_prompts: Vec<(String, RehearsedPrompt)>,
    /// The first step of the first iteration, on a response that no network wrote.
    pub step: Option<RehearsedStep>,
    /// The lengths of the rehearsed episodes.
    pub lengths: Option<MeasuredLengths>,
    /// The chats of the warm start.
    pub lessons: Option<Lessons>,
    pub space: Option<Space>,
}

/// The parts that the checks opened, for a run that starts.
pub struct Ready {
    pub plugins: Plugins,
    pub environments: Environments,
    pub estimator: Estimator,
    /// The policy loss, where a plugin gives it.
    pub loss: Option<Loss>,
    /// Number of training tasks.
    pub tasks: TaskCounts,
    /// As [`Findings::source`].
    pub source: Option<Source>,
    /// The tokenizer of a new model, trained for the rehearsal.
    pub tokenizer: Option<Tokenizer>,
    /// The chats of the warm start.
    pub lessons: Option<Lessons>,
    pub warnings: Vec<String>,
}

impl Findings {
    /// Takes a value, or notes the problem that it could not be made for.
    pub fn take<T>(&mut self, found: Result<T>) -> Option<T> {
        found.map_err(|problem| self.problems.push(problem)).ok()
    }

    /// As [`Self::take`], with a mere warning where the part need not be on this machine.
    fn take_here<T>(&mut self, found: Result<T>, here: bool) -> Option<T> {
        match found {
            Err(error) if !here => {
                self.warnings.push(format!("not checked, because it is not on this machine: {error:#}"));
                None
            }
            found => self.take(found),
        }
    }

    /// The opened parts, or one error for all problems.
    pub fn ready(self) -> Result<Ready> {
        let Self {
            mut problems,
            warnings,
            plugins,
            environments,
            estimator,
            loss,
            tasks,
            source,
            tokenizer,
            lessons,
            ..
        } = self;
        // A stop, and a plugin that hangs or fails, are no faults of the recipe: one of them comes before its problems.
        if let Some(at) = problems.iter().position(is_failure) {
            return Err(problems.swap_remove(at));
        }
        if let Some(error) = all_of(problems) {
            return Err(error);
        }
        let incomplete = || anyhow!("the checks of the recipe found no problem and yet opened nothing");
        Ok(Ready {
            plugins: plugins.with_context(incomplete)?,
            environments: environments.with_context(incomplete)?,
            estimator: estimator.with_context(incomplete)?,
            loss,
            tasks: tasks.with_context(incomplete)?,
            source,
            tokenizer,
            lessons,
            warnings,
        })
    }
}

/// True for an error that another recipe would not mend.
fn is_failure(problem: &anyhow::Error) -> bool {
    !problem.chain().any(|cause| cause.is::<InputError>())
}

/// Checks a recipe under the given conditions.
pub fn preflight(recipe: &Recipe, conditions: &Conditions) -> Findings {
    let mut findings = Findings { warnings: recipe.warnings(), ..Findings::default() };
    findings.warnings.extend(idle_ranks(recipe, conditions.ranks));
    findings.take(check_sharding(recipe, conditions.ranks));
    if conditions.root && conditions.elsewhere.is_none() {
        findings.take(WandbRun::check(recipe.wandb.as_ref()));
        findings.take(recipe.checkpoint.mirror.as_deref().map_or(Ok(()), |url| Store::open(url).map(drop)));
    }
    plugins(recipe, conditions, &mut findings);
    model::check(recipe, conditions, &mut findings);
    columns::check(recipe, conditions, &mut findings);
    reference(recipe, conditions, &mut findings);
    lessons(recipe, conditions, &mut findings);
    drop_long(recipe, &mut findings);
    if conditions.root {
        rehearse::rehearse(recipe, &mut findings);
    }
    if let (Some(dir), Some(config), true) = (conditions.dir, &findings.config, conditions.root) {
        let reads = needs_reference(recipe, findings.estimator.as_ref(), findings.loss.as_ref());
        let space = Space::of(recipe, config, reads && recipe.reference.is_none(), dir);
        match space.check(recipe) {
            Ok(warning) => findings.warnings.extend(warning),
            Err(problem) => findings.problems.push(problem),
        }
        findings.space = Some(space);
    }
    findings
}

/// Refuses a reference that nothing reads, and one that does not fit. Keeps its configuration.
fn reference(recipe: &Recipe, conditions: &Conditions, findings: &mut Findings) {
    let Some(reference) = &recipe.reference else { return };
    if findings.estimator.is_some() && !needs_reference(recipe, findings.estimator.as_ref(), findings.loss.as_ref()) {
        findings.problems.push(input_error!(
            "recipe key `reference`: nothing reads its log-probs, so the model would be loaded for nothing; add `update.kl` or \
             `update.kl_in_reward`, or remove the section (or --set reference=null)"
        ));
    }
    let checked = model::check_frozen(recipe, (&reference.path, "reference"), findings.tokenizer.as_ref());
    findings.reference =
        findings.take_here(checked.context("recipe key `reference.path`"), conditions.elsewhere.is_none());
}

/// True if the run needs a frozen reference.
pub fn needs_reference(recipe: &Recipe, estimator: Option<&Estimator>, loss: Option<&Loss>) -> bool {
    let of_plugins = estimator.is_some_and(|estimator| estimator.needs().reference)
        || loss.is_some_and(|loss| loss.needs().reference);
    recipe.update.kl.is_some() || recipe.update.kl_in_reward.is_some() || of_plugins
}

/// Refuses several ranks without sharding.
pub fn check_sharding(recipe: &Recipe, ranks: usize) -> Result<()> {
    match recipe.sharding {
        Sharding::None if ranks > 1 => Err(input_error!(
            "recipe key `sharding`: `none` is for one rank, and there are {ranks}; set it to full or grad_op"
        )),
        _ => Ok(()),
    }
}

/// Warns of ranks without work.
fn idle_ranks(recipe: &Recipe, ranks: usize) -> Vec<String> {
    let (tasks, mini_batch) = (recipe.rollout.tasks as usize, recipe.update.mini_batch);
    let mut warnings = Vec::new();
    if ranks > tasks {
        warnings.push(format!(
            "rollout.tasks is {tasks}, and groups are not split: {} of {ranks} ranks play nothing",
            ranks - tasks
        ));
    }
    if ranks > mini_batch {
        warnings.push(format!(
            "update.mini_batch is {mini_batch} steps: at least {} of {ranks} ranks have none in the update",
            ranks - mini_batch
        ));
    }
    warnings
}

/// Opens all plugins with their configs, and counts the tasks of both splits.
fn plugins(recipe: &Recipe, conditions: &Conditions, findings: &mut Findings) {
    let (timeout, stop) = (Duration::from_secs(recipe.env.timeout_s()), conditions.stop.clone());
    let limits = Limits { timeout, stop, ..Limits::default() };
    let Some(plugins) = findings.take(Plugins::discover()) else { return };
    let plugins = plugins.with_limits(limits);
    open(recipe, conditions, &plugins, findings);
    findings.plugins = Some(plugins);
}

fn open(recipe: &Recipe, conditions: &Conditions, plugins: &Plugins, findings: &mut Findings) {
    let opened = plugins.estimator(&recipe.estimator.choice()).context("recipe key `estimator`");
    let installed = plugins.find(Kind::Estimator, &recipe.estimator.plugin).is_ok();
    if let Some(estimator) = findings.take_here(opened, conditions.elsewhere.is_none() || installed) {
        let shadowed = findings.take(plugins.shadow_warnings([estimator.file()]));
        findings.warnings.extend(shadowed.into_iter().flatten());
        findings.take(check_critic(recipe, &estimator));
        if estimator.needs().anchors && recipe.rollout.group_size == 1 {
            findings.warnings.push(format!(
                "rollout.group_size is 1, and estimator `{}` compares the episodes of a group and the steps that they take in \
                 one state: alone in its group, an episode has nothing to learn from; raise it",
                estimator.id()
            ));
        }
        findings.estimator = Some(estimator);
    }
    if let Some(choice) = &recipe.loss {
        let installed = plugins.find(Kind::Loss, &choice.plugin).is_ok();
        let opened = plugins.loss(choice).context("recipe key `loss`");
        findings.loss = findings.take_here(opened, conditions.elsewhere.is_none() || installed);
        let file = findings.loss.as_ref().map(Loss::file);
        let shadowed = plugins.shadow_warnings(file);
        let shadowed = findings.take(shadowed).into_iter().flatten();
        findings.warnings.extend(shadowed);
    }
    open_environments(recipe, conditions, plugins, findings);
}

/// Opens the environments, and counts their tasks.
fn open_environments(recipe: &Recipe, conditions: &Conditions, plugins: &Plugins, findings: &mut Findings) {
    let mut opened = Vec::new();
    for (path, choice) in recipe.env.sections() {
        let _slow = SlowNotice::new(format!("opening environment `{}`", choice.plugin));
        // An installed environment, too, may have its games or other data on the machine that the plan is for.
        let shared_env = plugins.environment(&choice.choice()).with_context(|| format!("recipe key `{path}`"));
        opened.extend(findings.take_here(shared_env, conditions.elsewhere.is_none()));
        if findings.problems.iter().any(is_failure) {
            return; // the next call would hang or fail as well
        }
    }
    if opened.len() < recipe.env.all().len() {
        return;
    }
    let environments = Environments::of(recipe, opened);
    findings.tasks = findings.take(environments.count_tasks("rollout.split", &recipe.rollout.split));
    if findings.problems.iter().any(is_failure) {
        return; // the next call would hang or fail as well
    }
    if recipe.eval.evaluates() {
        let counts = findings.take(environments.count_eval_tasks(&recipe.eval));
        findings.eval_tasks = counts.map(|counts| (counts.evaluated(recipe.eval.tasks), counts));
    }
    let shadowed = findings.take(plugins.shadow_warnings(environments.files()));
    findings.warnings.extend(shadowed.into_iter().flatten());
    findings.environments = Some(environments);
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

/// Reads the chats of the warm start. Every rank does, and all find the same.
fn lessons(recipe: &Recipe, conditions: &Conditions, findings: &mut Findings) {
    let Some(tokenizer) = &findings.tokenizer else { return };
    let _slow = SlowNotice::new("reading the chats of the warm start");
    let read = Lessons::read(recipe, tokenizer).context("recipe key `warm_start`");
    let Some(Some(lessons)) = findings.take_here(read, conditions.elsewhere.is_none()) else { return };
    if lessons.too_long > 0 {
        findings.warnings.push(format!(
            "{} chats of the warm start have more tokens than `warm_start.max_tokens` and were {}",
            lessons.too_long,
            match recipe.warm_start.as_ref().map(|settings| settings.too_long) {
                Some(TooLong::Cut) => "cut",
                _ => "left out",
            }
        ));
    }
    findings.lessons = Some(lessons);
}

/// Leaves tasks with over-long prompts out, where the recipe asks for it. Every rank does, and all find the same.
fn drop_long(recipe: &Recipe, findings: &mut Findings) {
    let Findings { environments: Some(environments), tokenizer: Some(tokenizer), config: Some(config), .. } =
        &*findings
    else {
        return;
    };
    let (rollout, eval) = (&recipe.rollout, &recipe.eval);
    if rollout.truncation != Truncation::Drop || findings.tasks.is_none() {
        return;
    }
    let evaluates = findings.eval_tasks.is_some();
    let (mut left, mut warnings) = (Vec::new(), Vec::new());
    for member in environments.members() {
        let shared_env = &member.shared_env;
        let rehearsal = Rehearsal { shared_env, rollout, tokenizer, config, imitates: false, teacher: None };
        let trained = member.split(&rollout.split);
        let evaluated = evaluates.then(|| member.split(&eval.split)).filter(|split| *split != trained);
        let splits: Vec<&str> = [trained].into_iter().chain(evaluated).collect();
        match without_long(&rehearsal, &splits).context("recipe key `rollout.truncation`") {
            Err(problem) => return findings.problems.push(problem),
            Ok((shared_env, warning)) => {
                left.push(shared_env);
                warnings.extend(warning);
            }
        }
    }
    let environments = environments.with(left);
    findings.warnings.extend(warnings);
    findings.tasks = findings.take(environments.count_tasks("rollout.split", &rollout.split));
    if evaluates {
        let counts = findings.take(environments.count_eval_tasks(eval));
        findings.eval_tasks = counts.map(|counts| (counts.evaluated(eval.tasks), counts));
    }
    findings.environments = Some(environments);
}

/// Opens as many instances side by side as the first iteration of one rank does.
pub fn open_slots(recipe: &Recipe, ranks: usize, findings: &mut Findings) {
    let (Some(environments), Some(tasks), true) =
        (&findings.environments, &findings.tasks, findings.problems.is_empty())
    else {
        return;
    };
    let _slow = SlowNotice::new("opening an instance of the environment for each slot");
    let rollout = &recipe.rollout;
    let groups = (rollout.tasks as usize).div_ceil(ranks);
    let drawn = TaskDraws::new(tasks, recipe.seed).next(groups, &environments.weights(), None);
    let opened = fill_slots(environments, rollout, &plan(&drawn, rollout.group_size, recipe.seed, 1));
    findings.take(opened);
}
