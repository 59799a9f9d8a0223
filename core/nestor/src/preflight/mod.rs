//! Checks of a recipe before a run: everything that can be known without a pass of the network.
//!
//! `nestor train` starts with them, `nestor train --check` prints their result, and `nestor plan` refuses what they refuse.
//! All problems are reported together. Nothing is written.

mod columns;
mod disk;
mod model;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nestor_mirror::Store;
use serde_json::Value;

pub use disk::Space;
pub use model::new_tokenizer;

use crate::agent::{
    MOST_ROWS, MeasuredLengths, Rehearsal, Rehearsed, RehearsedPrompt, RehearsedStep, TaskCursor, TeacherPrompts,
    count_eval_tasks, count_tasks, eval_plan, fill_slots, plan, without_long,
};
use crate::checkpoint::Source;
use crate::error::InputError;
use crate::input_error;
use crate::model::Config;
use crate::plugin::{Estimator, Kind, Limits, Loss, Plugins, SharedEnv};
use crate::recipe::{EvalTasks, Recipe, Sharding, TooLong, Truncation, all_of};
use crate::tokenizer::Tokenizer;
use crate::track::{SlowNotice, WandbRun};
use crate::warm_start::Lessons;

/// Tasks of the first iteration whose first steps are rehearsed.
const TRAINING_TASKS: usize = 8;
/// Evaluation tasks whose first steps are rehearsed.
const EVAL_TASKS: u32 = 4;
/// Ends of the names of files whose rows are tasks.
const ROWS: [&str; 4] = ["jsonl", "json", "parquet", "csv"];

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
    pub shared_env: Option<SharedEnv>,
    pub estimator: Option<Estimator>,
    /// The policy loss, where a plugin gives it.
    pub loss: Option<Loss>,
    /// Number of training tasks.
    pub tasks: Option<u64>,
    /// Number of tasks of an evaluation, and of its split.
    pub eval_tasks: Option<(u64, u64)>,
    /// The model that the recipe names, or that a resumed run made when it began; none where the run makes one, or where
    /// [`Conditions::elsewhere`] stands for it.
    pub source: Option<Source>,
    pub config: Option<Config>,
    /// The teacher's configuration.
    pub teacher: Option<Config>,
    /// That of the model of `reference`.
    pub reference: Option<Config>,
    pub tokenizer: Option<Tokenizer>,
    /// The first prompt of the first iteration.
    pub prompt: Option<RehearsedPrompt>,
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
    pub shared_env: SharedEnv,
    pub estimator: Estimator,
    /// The policy loss, where a plugin gives it.
    pub loss: Option<Loss>,
    /// Number of training tasks.
    pub tasks: u64,
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
            shared_env,
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
            shared_env: shared_env.with_context(incomplete)?,
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
        rehearse(recipe, &mut findings);
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
    let (timeout, stop) = (Duration::from_secs(recipe.env.timeout_s), conditions.stop.clone());
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
    let _slow = SlowNotice::new(format!("opening environment `{}`", recipe.env.plugin));
    // An installed environment, too, may have its games or other data on the machine that the plan is for.
    let opened = plugins.environment(&recipe.env.choice()).context("recipe key `env`");
    let Some(shared_env) = findings.take_here(opened, conditions.elsewhere.is_none()) else { return };
    findings.tasks = findings.take(count_tasks(&shared_env, "rollout.split", &recipe.rollout.split));
    if findings.problems.iter().any(is_failure) {
        return; // the next call would hang or fail as well
    }
    if recipe.eval.evaluates() {
        let count = findings.take(count_eval_tasks(&shared_env, &recipe.eval));
        findings.eval_tasks = count.map(|count| (recipe.eval.tasks.number(count), count));
    }
    let shadowed = findings.take(plugins.shadow_warnings([shared_env.file()]));
    findings.warnings.extend(shadowed.into_iter().flatten());
    findings.shared_env = Some(shared_env);
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
    let Findings { shared_env: Some(shared_env), tokenizer: Some(tokenizer), config: Some(config), .. } = &*findings
    else {
        return;
    };
    let (rollout, eval) = (&recipe.rollout, &recipe.eval);
    if rollout.truncation != Truncation::Drop || findings.tasks.is_none() {
        return;
    }
    let rehearsal = Rehearsal { shared_env, rollout, tokenizer, config, imitates: false, teacher: None };
    let evaluated = findings.eval_tasks.map(|_| &*eval.split).filter(|split| *split != rollout.split);
    let splits: Vec<&str> = [&*rollout.split].into_iter().chain(evaluated).collect();
    let left = without_long(&rehearsal, &splits).context("recipe key `rollout.truncation`");
    let Some((shared_env, warnings)) = findings.take(left) else { return };
    findings.warnings.extend(warnings);
    findings.tasks = findings.take(count_tasks(&shared_env, "rollout.split", &rollout.split));
    if findings.eval_tasks.is_some() {
        let count = findings.take(count_eval_tasks(&shared_env, eval));
        findings.eval_tasks = count.map(|count| (eval.tasks.number(count), count));
    }
    findings.shared_env = Some(shared_env);
}

/// Plays the first steps of the first training and evaluation tasks, and notes the first prompt and the lengths. Where tasks
/// are rows of a file, all of their prompts are counted.
fn rehearse(recipe: &Recipe, findings: &mut Findings) {
    let Findings { shared_env: Some(shared_env), tokenizer: Some(tokenizer), config: Some(config), .. } = &*findings
    else {
        return;
    };
    let _slow = SlowNotice::new("rehearsing first prompts");
    let (tasks, eval_tasks) = (findings.tasks, findings.eval_tasks);
    let (rollout, eval) = (&recipe.rollout, &recipe.eval);
    let template = recipe.estimator.teacher.as_ref().and_then(|teacher| teacher.template.as_ref());
    let limit = findings.teacher.as_ref().map_or(usize::MAX, |teacher| teacher.max_position_embeddings as usize);
    let teacher = template.map(|template| TeacherPrompts::new(template, rollout, (tokenizer, config), limit));
    let teacher = match teacher.transpose() {
        Ok(teacher) => teacher,
        Err(problem) => return findings.problems.push(problem),
    };
    let rehearsal = Rehearsal { shared_env, rollout, tokenizer, config, imitates: recipe.imitates_expert(), teacher };
    let evaluated = |(tasks, count): (u64, u64)| {
        let panel = EvalTasks::Panel(tasks.min(u64::from(u32::MAX)) as u32);
        eval_plan(count, panel, 1, eval.panel_seed(recipe.seed))
    };
    let play = || {
        let mut rehearsed = Rehearsed::default();
        if let Some(count) = tasks {
            let drawn = TaskCursor::new(count, recipe.seed).next(TRAINING_TASKS.min(rollout.tasks as usize));
            let plan = plan(&drawn, 1, recipe.seed, 1);
            rehearsed.extend(rehearsal.play(&rollout.split, &plan).context("rehearsing a prompt")?);
        }
        if let Some(counts) = eval_tasks {
            let plan: Vec<_> = evaluated(counts).into_iter().take(EVAL_TASKS as usize).collect();
            let played = rehearsal.play(&eval.split, &plan).context("rehearsing a prompt of the evaluation")?;
            rehearsed.extend(played);
        }
        Ok(rehearsed)
    };
    let refuses = rollout.truncation == Truncation::Error;
    let count_rows = || {
        let trained = tasks.map(|count| rehearsal.check_lengths(&rollout.split, 0..count));
        let evaluated = eval_tasks.map(|counts| evaluated(counts).into_iter().map(|plan| plan.task));
        let evaluated = evaluated.map(|tasks| rehearsal.check_lengths(&eval.split, tasks));
        [trained, evaluated].into_iter().flatten().filter_map(Result::err).collect::<Vec<_>>()
    };
    let of_file = names_a_file(&recipe.env.config);
    let mut problems = if of_file && refuses { count_rows() } else { Vec::new() };
    let mut rehearsed = Rehearsed::default();
    // An over-long row would also end the rehearsal, which names no other.
    if problems.is_empty() {
        match play() {
            Ok(played) => rehearsed = played,
            Err(problem) => problems.push(problem),
        }
        if rehearsed.has_one_step() && refuses && !of_file {
            problems.extend(count_rows());
        }
    }
    let counted = refuses && (of_file || rehearsed.has_one_step());
    if let Some(count) = tasks.filter(|&count| counted && count > MOST_ROWS) {
        findings.warnings.push(format!(
            "only the first {MOST_ROWS} of {count} training tasks were looked at for prompts over rollout.max_prompt_tokens; a \
             longer one ends the run where it comes up, unless rollout.truncation is left, right or middle"
        ));
    }
    findings.problems.extend(problems);
    let judged = rehearsed.judge(rollout.env_errors);
    let warning = findings.take(judged).flatten();
    findings.warnings.extend(warning);
    findings.lengths = rehearsed.lengths();
    findings.prompt = rehearsed.first;
    findings.step = rehearsed.step;
}

/// Opens as many instances side by side as the first iteration of one rank does.
pub fn open_slots(recipe: &Recipe, ranks: usize, findings: &mut Findings) {
    let (Some(shared_env), Some(tasks), true) = (&findings.shared_env, findings.tasks, findings.problems.is_empty())
    else {
        return;
    };
    let _slow = SlowNotice::new("opening an instance of the environment for each slot");
    let rollout = &recipe.rollout;
    let drawn = TaskCursor::new(tasks, recipe.seed).next((rollout.tasks as usize).div_ceil(ranks));
    let opened = fill_slots(shared_env, rollout, &plan(&drawn, rollout.group_size, recipe.seed, 1));
    findings.take(opened);
}

/// True if a plugin's config names a file of rows.
fn names_a_file(config: &Value) -> bool {
    match config {
        Value::String(text) => {
            let path = Path::new(text.strip_suffix(".gz").unwrap_or(text));
            path.extension().is_some_and(|end| ROWS.iter().any(|known| end == *known)) && Path::new(text).is_file()
        }
        Value::Array(items) => items.iter().any(names_a_file),
        Value::Object(map) => map.values().any(names_a_file),
        _ => false,
    }
}
