//! The rehearsal of a recipe: the first steps of its first tasks, in each of its environments.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Findings;
use crate::agent::{EpisodePlan, Member, Rehearsal, Rehearsed, TaskCounts, TeacherPrompts, eval_plan, plan};
use crate::recipe::{Recipe, Truncation};
use crate::track::SlowNotice;

/// Tasks of the first iteration whose first steps are rehearsed, of each environment.
const TRAINING_TASKS: usize = 8;
/// Evaluation tasks whose first steps are rehearsed, of each environment.
const EVAL_TASKS: usize = 4;
/// Ends of the names of files whose rows are tasks.
const ROWS: [&str; 4] = ["jsonl", "json", "parquet", "csv"];

/// The tasks of one environment that a rehearsal plays, by its own numbers.
struct Rehearsing<'a> {
    rehearsal: Rehearsal<'a>,
    /// Number of training tasks, and the first ones.
    trained: Option<(u64, Vec<EpisodePlan>)>,
    /// All tasks of the evaluation.
    evaluated: Option<Vec<EpisodePlan>>,
    /// Its splits for both.
    splits: [&'a str; 2],
    /// Its tasks are rows of a file.
    of_file: bool,
}

/// Plays the first steps of the first training and evaluation tasks, and notes the first prompt and the lengths. Where tasks
/// are rows of a file, all of their prompts are counted.
pub fn rehearse(recipe: &Recipe, findings: &mut Findings) {
    let Findings { environments: Some(environments), tokenizer: Some(tokenizer), config: Some(config), .. } =
        &*findings
    else {
        return;
    };
    let _slow = SlowNotice::new("rehearsing first prompts");
    let rollout = &recipe.rollout;
    let template = recipe.estimator.teacher.as_ref().and_then(|teacher| teacher.template.as_ref());
    let limit = findings.teacher.as_ref().map_or(usize::MAX, |teacher| teacher.max_position_embeddings as usize);
    let (mut all, mut problems, mut warnings, mut prompts) = (Rehearsed::default(), Vec::new(), Vec::new(), Vec::new());
    for (number, member) in environments.members().iter().enumerate() {
        let teacher = template.map(|template| TeacherPrompts::new(template, rollout, (tokenizer, config), limit));
        let teacher = match teacher.transpose() {
            Ok(teacher) => teacher,
            Err(problem) => return findings.problems.push(problem),
        };
        let shared_env = &member.shared_env;
        let imitates = recipe.imitates_expert();
        let rehearsal = Rehearsal { shared_env, rollout, tokenizer, config, imitates, teacher };
        let rehearsing = Rehearsing::of(recipe, (number, member), findings, rehearsal);
        let (rehearsed, own_problems, looked_at) = rehearsing.run(rollout.truncation == Truncation::Error);
        let named = |problem: anyhow::Error| match recipe.env.is_list() {
            true => problem.context(format!("environment `{}`", member.name)),
            false => problem,
        };
        problems.extend(own_problems.into_iter().map(named));
        warnings.extend(rehearsing.warning(looked_at));
        prompts.extend(rehearsed.first.clone().map(|prompt| (member.name.clone(), prompt)));
        all.extend(rehearsed);
    }
    findings.warnings.extend(warnings);
    findings.problems.extend(problems);
    let judged = all.judge(rollout.env_errors);
    let warning = findings.take(judged).flatten();
    findings.warnings.extend(warning);
    findings.lengths = all.lengths();
    findings.prompt = all.first;
    findings.step = all.step;
    findings.further_prompts = prompts.into_iter().skip(1).collect();
}

impl<'a> Rehearsing<'a> {
    fn of(
        recipe: &'a Recipe,
        (number, member): (usize, &'a Member),
        findings: &Findings,
        rehearsal: Rehearsal<'a>,
    ) -> Self {
        let (rollout, eval) = (&recipe.rollout, &recipe.eval);
        let trained = findings.tasks.as_ref().map(|counts| {
            let drawn = counts.cursors(recipe.seed)[number].next(TRAINING_TASKS.min(rollout.tasks as usize));
            (counts.each()[number], plan(&drawn, 1, recipe.seed, 1))
        });
        let evaluated = findings.eval_tasks.as_ref().map(|(_, counts)| {
            let seed = eval.panel_seed(recipe.seed);
            own_part(number, counts, eval_plan(counts, eval.tasks, 1, seed))
        });
        let splits = [member.split(&rollout.split), member.split(&eval.split)];
        let of_file = names_a_file(&recipe.env.all()[number].config);
        Self { rehearsal, trained, evaluated, splits, of_file }
    }

    /// Plays, and counts the prompts of all rows where long ones are refused. Returns the problems beside what was played, and the
    /// number of training tasks whose prompts were counted.
    fn run(&self, refuses: bool) -> (Rehearsed, Vec<anyhow::Error>, Option<u64>) {
        let (mut problems, mut looked_at) = (Vec::new(), None);
        if self.of_file && refuses {
            looked_at = self.count_rows(&mut problems);
        }
        let mut rehearsed = Rehearsed::default();
        // An over-long row would also end the rehearsal, which names no other.
        if problems.is_empty() {
            match self.play() {
                Ok(played) => rehearsed = played,
                Err(problem) => problems.push(problem),
            }
            if rehearsed.has_one_step() && refuses && !self.of_file {
                looked_at = self.count_rows(&mut problems);
            }
        }
        (rehearsed, problems, looked_at)
    }

    fn play(&self) -> Result<Rehearsed> {
        let ([trained, evaluated], mut rehearsed) = (self.splits, Rehearsed::default());
        if let Some((_, plan)) = &self.trained {
            rehearsed.extend(self.rehearsal.play(trained, plan).context("rehearsing a prompt")?);
        }
        if let Some(plan) = &self.evaluated {
            let plan = &plan[..plan.len().min(EVAL_TASKS)];
            let played = self.rehearsal.play(evaluated, plan).context("rehearsing a prompt of the evaluation")?;
            rehearsed.extend(played);
        }
        Ok(rehearsed)
    }

    /// Counts the prompts of the tasks of training and evaluation. Returns the number of training tasks that it has looked at.
    fn count_rows(&self, problems: &mut Vec<anyhow::Error>) -> Option<u64> {
        let [trained, evaluated] = self.splits;
        let trained = self.trained.as_ref().map(|(count, _)| self.rehearsal.check_lengths(trained, 0..*count));
        let tasks = self.evaluated.as_ref().map(|plan| plan.iter().map(|plan| plan.task));
        let evaluated = tasks.map(|tasks| self.rehearsal.check_lengths(evaluated, tasks));
        let [trained, _] = [trained, evaluated].map(|counted| counted?.map_err(|problem| problems.push(problem)).ok());
        trained
    }

    /// Warns of rows whose prompts were not counted.
    fn warning(&self, looked_at: Option<u64>) -> Option<String> {
        let (looked_at, (count, _)) = (looked_at?, self.trained.as_ref()?);
        (looked_at < *count).then(|| {
            format!(
                "only the first {looked_at} of {count} training tasks were looked at for prompts over rollout.max_prompt_tokens; a \
                 longer one ends the run where it comes up, unless rollout.truncation is left, right or middle"
            )
        })
    }
}

/// The episodes of one environment, with its own numbers of tasks.
fn own_part(number: usize, counts: &TaskCounts, plan: Vec<EpisodePlan>) -> Vec<EpisodePlan> {
    let all = counts.each().len() as u64;
    let own = plan.into_iter().filter(|plan| plan.task % all == number as u64);
    own.map(|plan| EpisodePlan { task: plan.task / all, ..plan }).collect()
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
