//! `nestor train --check`: the checks that a run starts with, and their result for people and programs.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::TrainArgs;
use super::check::made_model;
use super::directory::place;
use crate::agent::{RehearsedPrompt, RehearsedStep, TaskCounts};
use crate::error::message;
use crate::model::prepare;
use crate::preflight::{Conditions, Findings, open_slots, preflight};
use crate::recipe::Recipe;

/// Result of the checks of a recipe.
pub struct Verdict {
    dir: Option<PathBuf>,
    recipe: Recipe,
    findings: Findings,
}

/// Checks what can be known before a run of `ranks` ranks. Writes nothing.
pub fn verdict(recipe: Recipe, name: &str, args: &TrainArgs, ranks: usize) -> Verdict {
    let placed = place(name, args);
    let (dir, resumes) = placed.as_ref().map_or((None, false), |(dir, resumes)| (Some(dir.clone()), *resumes));
    let made = dir.as_deref().filter(|_| resumes).and_then(made_model);
    let conditions = Conditions {
        ranks,
        root: true,
        dir: dir.as_deref(),
        made: made.as_deref(),
        elsewhere: None,
        stop: Arc::default(),
    };
    let mut findings = preflight(&recipe, &conditions);
    open_slots(&recipe, ranks, &mut findings);
    findings.warnings.extend(args.memory_warning.and_then(|warning| warning(&recipe, &findings, ranks)));
    findings.take(placed);
    findings.take(prepare(&recipe, 0));
    Verdict { dir, recipe, findings }
}

impl Verdict {
    /// True if the run would start.
    pub fn passes(&self) -> bool {
        self.findings.problems.is_empty()
    }

    /// One message per problem.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.findings.problems.iter().map(message)
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let Findings { warnings, tasks, eval_tasks, prompt, further_prompts, step, space, .. } = &self.findings;
        json!({
            "passes": self.passes(),
            "problems": self.problems().collect::<Vec<_>>(),
            "warnings": warnings,
            "run_dir": self.dir,
            "tasks": tasks.as_ref().map(TaskCounts::total),
            "eval_tasks": eval_tasks.as_ref().map(|(played, _)| played),
            "space": space,
            "prompt": prompt.as_ref().map(shown),
            "further_prompts": further_prompts.iter().map(|(name, p)| (name.clone(), shown(p))).collect::<Map<_, _>>(),
            "step": step.as_ref().map(|s| json!({
                "task": s.task, "response": s.response, "reward": s.reward, "valid": s.valid, "over": s.over, "metrics": s.metrics,
                "teacher_prompt": s.teacher_prompt,
            })),
        })
    }
}

fn shown(prompt: &RehearsedPrompt) -> Value {
    let RehearsedPrompt { task, text, tokens } = prompt;
    json!({ "task": task, "tokens": tokens, "text": text })
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Recipe { env, estimator, rollout, eval, .. } = &self.recipe;
        let Findings { warnings, tasks, eval_tasks, prompt, further_prompts, space, config, .. } = &self.findings;
        for (number, env) in env.all().iter().enumerate() {
            let name = env.name();
            if let Some(tasks) = tasks {
                let (tasks, split) = (tasks.each()[number], self.recipe.split_of(number));
                writeln!(f, "environment {name}: {tasks} training tasks in split {split}")?;
            }
            if let Some((_, counts)) = eval_tasks {
                let samples = if eval.samples > 1 { format!(", {} samples each", eval.samples) } else { String::new() };
                let (count, split) = (counts.each()[number], env.eval_split.as_ref().unwrap_or(&eval.split));
                let of = if self.recipe.env.is_list() { format!(" of {name}") } else { String::new() };
                writeln!(
                    f,
                    "evaluation{of}: {} of the {count} tasks of split {split}{samples}",
                    eval.tasks.number(count)
                )?;
            }
        }
        if !eval.evaluates() {
            writeln!(f, "evaluation: none (eval.tasks)")?;
        }
        if self.findings.estimator.is_some() {
            writeln!(f, "estimator {}", estimator.plugin)?;
        }
        if let (Some(choice), Some(_)) = (&self.recipe.loss, &self.findings.loss) {
            writeln!(f, "loss {}", choice.plugin)?;
        }
        if let Some(config) = config {
            let (blocks, vocabulary) = (config.num_hidden_layers, config.vocab_size);
            writeln!(f, "model: {blocks} blocks, vocabulary {vocabulary}")?;
        }
        if let (Some(space), Some(dir)) = (space, &self.dir) {
            let gb = |bytes: u64| bytes as f64 / 1e9;
            let free = space.free.map_or(String::new(), |free| format!(", {:.1} GB free", gb(free)));
            writeln!(f, "run directory {}: {:.4} GB per checkpoint{free}", dir.display(), gb(space.checkpoint))?;
        }
        for warning in warnings {
            writeln!(f, "warning: {warning}")?;
        }
        if let Some(prompt) = prompt {
            let (task, tokens, most) = (prompt.task, prompt.tokens, rollout.max_prompt_tokens);
            writeln!(f, "first prompt (task {task}, {tokens} of at most {most} tokens):\n{}", prompt.text.trim_end())?;
        }
        for (environment, RehearsedPrompt { task, text, tokens }) in further_prompts {
            writeln!(f, "first prompt of {environment} (task {task}, {tokens} tokens):\n{}", text.trim_end())?;
        }
        if let Some(RehearsedStep { response, reward, valid, over, metrics, teacher_prompt, .. }) = &self.findings.step
        {
            let response =
                if response.is_empty() { "an empty response".into() } else { format!("the response {response:?}") };
            let (is, over) =
                (if *valid { "valid" } else { "invalid" }, if *over { ", and the episode is over" } else { "" });
            let metrics: String = metrics.iter().map(|(name, value)| format!(", env/{name} {}", value + 0.0)).collect();
            writeln!(f, "first step: {response} is {is} and gets the reward {reward}{metrics}{over}")?;
            if let Some(prompt) = teacher_prompt {
                writeln!(f, "the teacher scores it behind this prompt:\n{}", prompt.trim_end())?;
            }
        }
        match self.findings.problems.len() {
            0 => write!(f, "passed: the run would start"),
            1 => write!(f, "failed: 1 problem"),
            n => write!(f, "failed: {n} problems"),
        }
    }
}
