//! The first steps of episodes without a network: a prompt that cannot be rendered, or does not fit, is found before a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::episode_state::{EpisodeState, StepTokens};
use super::failures::Failures;
use super::prompt;
use super::report::with_single_placeholders;
use super::step_prompt::{PromptSettings, StepPrompts};
use super::tasks::EpisodePlan;
use super::teacher_prompt::TeacherPrompts;
use crate::error::Stopped;
use crate::input_error;
use crate::model::Config;
use crate::plugin::{Env, Observation, SharedEnv, TakenResponse};
use crate::recipe::Rollout;
use crate::tokenizer::Tokenizer;

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RehearsedPrompt {
    pub task: u64,
    /// The text that the model reads, chat template included.
    pub text: String,
    pub tokens: usize,
}

/// The first step of an episode: a response that no network wrote, and what the environment made of it.
#[derive(Debug, Clone, PartialEq)]
pub struct RehearsedStep {
    pub task: u64,
    pub response: String,
    pub reward: f64,
    pub valid: bool,
    /// The episode is over.
    pub over: bool,
    /// The environment's own metrics.
    pub metrics: BTreeMap<String, f64>,
    /// The prompt that a teacher with a template of its own scores the response behind.
    pub teacher_prompt: Option<String>,
}

/// Plays the first two steps of episodes: with the expert's actions where the environment has an expert, else with an
/// empty response.
pub struct Rehearsal<'a> {
    pub shared_env: &'a SharedEnv,
    pub rollout: &'a Rollout,
    pub tokenizer: &'a Tokenizer,
    /// That of the model, for the tokens of images.
    pub config: &'a Config,
    /// True if a warm start follows, whose responses must fit too.
    pub imitates: bool,
    /// The teacher's own prompts.
    pub teacher: Option<TeacherPrompts<'a>>,
}

/// Results of a rehearsal.
#[derive(Debug, Default)]
pub struct Rehearsed {
    /// The first prompt of the first episode.
    pub first: Option<RehearsedPrompt>,
    /// The first step of the first episode.
    pub step: Option<RehearsedStep>,
    /// Tokens of the episodes' first prompts.
    pub prompts: Vec<usize>,
    /// Tokens of their second prompts; in a transcript of what the second step adds.
    pub later: Vec<usize>,
    /// Tokens that the two prompts begin with in common; in a transcript the whole first one.
    pub common: Vec<usize>,
    /// Tokens of the expert's responses, with their ends.
    pub responses: Vec<usize>,
    /// Number of episodes that their first step ended.
    pub ended: usize,
    /// The failures of first steps.
    pub failures: Vec<anyhow::Error>,
}

/// Mean lengths of the rehearsed episodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredLengths {
    pub episodes: usize,
    /// Tokens of a first prompt.
    pub first: f64,
    /// Tokens of a second prompt; none where no episode came to one.
    pub later: Option<f64>,
    /// Tokens that the sequences of a group begin with in common, as far as first and second prompts show it.
    pub common: f64,
    /// Tokens of the expert's response.
    pub response: Option<f64>,
    /// Each episode was over after one step.
    pub one_step: bool,
}

impl Rehearsed {
    /// Adds the episodes of another rehearsal.
    pub fn extend(&mut self, other: Self) {
        let Self { first, step, prompts, later, common, responses, ended, failures } = other;
        self.first = self.first.take().or(first);
        self.step = self.step.take().or(step);
        self.prompts.extend(prompts);
        self.later.extend(later);
        self.common.extend(common);
        self.responses.extend(responses);
        self.ended += ended;
        self.failures.extend(failures);
    }

    /// True if each episode was over after one step, as those of a reward function are.
    pub fn has_one_step(&self) -> bool {
        self.ended > 0 && self.ended == self.prompts.len()
    }

    /// The mean lengths; none without an episode.
    pub fn lengths(&self) -> Option<MeasuredLengths> {
        let mean = |all: &[usize]| (!all.is_empty()).then(|| all.iter().sum::<usize>() as f64 / all.len() as f64);
        let (episodes, first) = (self.prompts.len(), mean(&self.prompts)?);
        let (later, response, one_step) = (mean(&self.later), mean(&self.responses), self.has_one_step());
        let common = mean(&self.common).unwrap_or(if one_step { first } else { 0.0 });
        Some(MeasuredLengths { episodes, first, later, common, response, one_step })
    }

    /// Judges the failures of steps: the warning that they deserve, if any.
    ///
    /// # Errors
    /// If a run would end by them: it permits no failure.
    pub fn judge(&mut self, env_errors: u64) -> Result<Option<String>> {
        let (failed, played) = (self.failures.len(), self.prompts.len());
        if failed == 0 {
            return Ok(None);
        }
        let first = self.failures.swap_remove(0);
        if env_errors == 0 {
            return Err(first.context(format!("{failed} of {played} rehearsed steps failed")));
        }
        Ok(Some(format!(
            "{failed} of {played} rehearsed steps failed, which rollout.env_errors ({env_errors}) permits: {first:#}"
        )))
    }
}

/// An over-long first prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LongPrompt {
    task: u64,
    /// The row of a file, as the environment's info names it under `source`.
    source: Option<String>,
    tokens: usize,
}

/// Most rows whose prompts are counted before a run.
const MOST_ROWS: u64 = 200_000;
/// Longest time to count prompts before a run. The start of an episode may take a worker, a server or a database.
const LONGEST_COUNT: Duration = Duration::from_secs(20);
/// Most over-long prompts that a message names.
const NAMED: usize = 5;

impl Rehearsal<'_> {
    /// Rehearses episodes of a split.
    pub fn play(&self, split: &str, plan: &[EpisodePlan]) -> Result<Rehearsed> {
        let template = prompt::template(self.shared_env, self.rollout)?;
        let prompts = StepPrompts::new(vec![template], self.tokenizer, self.rollout)?;
        let mut env = self.shared_env.spawn()?;
        let mut rehearsed = Rehearsed::default();
        for plan in plan {
            if !self.episode(&mut env, split, *plan, &prompts, &mut rehearsed)? {
                env = self.shared_env.spawn()?; // the instance may be dead
            }
        }
        Ok(rehearsed)
    }

    /// The over-long first prompts among these tasks, and the number of tasks. At most `tolerated` resets may fail.
    fn long(&self, split: &str, tasks: impl Iterator<Item = u64>, tolerated: u64) -> Result<(u64, Vec<LongPrompt>)> {
        let template = prompt::template(self.shared_env, self.rollout)?;
        let unlimited = Rollout { max_prompt_tokens: usize::MAX, ..self.rollout.clone() };
        let limit = self.rollout.max_prompt_tokens;
        let mut env = self.shared_env.spawn()?;
        let (mut count, mut long, mut failed) = (0u64, Vec::new(), 0u64);
        for task in tasks {
            if self.shared_env.limits().stopped() {
                return Err(Stopped.into());
            }
            count += 1;
            let mut playing = EpisodeState::new(EpisodePlan { group: 0, episode: 0, task, seed: 0 });
            let seen = match env.reset(split, task, 0) {
                Err(error) if error.is::<Stopped>() => return Err(error),
                Err(error) => {
                    failed += 1;
                    if failed > tolerated {
                        let of = format!("{failed} of the first {count} tasks of split `{split}` cannot be reset");
                        return Err(error.context(of));
                    }
                    env = self.shared_env.spawn()?;
                    continue;
                }
                Ok(seen) => seen,
            };
            let source = seen.info.get("source").and_then(|source| source.as_str()).map(str::to_string);
            if playing.begin(seen) {
                continue;
            }
            let prompt = playing.prompt(&template, (&unlimited, self.config), |chat, tools| {
                let rendered = self.tokenizer.render_with_tools(chat, tools, true)?;
                // A token has at least one byte, so that a short text needs no counting.
                let fits = self.config.vision.is_none() && rendered.len() < limit;
                if fits { Ok(vec![0]) } else { self.tokenizer.encode(&rendered) }
            })?;
            if prompt.tokens.len() > limit {
                long.push(LongPrompt { task, source, tokens: prompt.tokens.len() });
            }
        }
        Ok((count, long))
    }

    /// The numbers of a split's tasks whose first prompts are too long. Every rank must find the same, so no reset may fail.
    pub fn dropped(&self, split: &str, count: u64) -> Result<Vec<u64>> {
        if count > MOST_ROWS {
            return Err(input_error!(
                "split `{split}` has {count} tasks, and rollout.truncation: drop looks at all prompts before a run, at most \
                 {MOST_ROWS}; set it to left, right or middle"
            ));
        }
        let (_, long) = self.long(split, 0..count, 0)?;
        Ok(long.into_iter().map(|prompt| prompt.task).collect())
    }

    /// Counts the tokens of the first prompts of these tasks, and refuses those that are too long, all together. Returns how many
    /// tasks it has looked at: not all, where they are more than [`MOST_ROWS`] or it takes too long.
    pub fn check_lengths(&self, split: &str, tasks: impl Iterator<Item = u64>) -> Result<u64> {
        let deadline = Instant::now() + LONGEST_COUNT;
        let tasks = tasks.take(MOST_ROWS as usize).take_while(|_| Instant::now() < deadline);
        let (count, long) = self.long(split, tasks, self.rollout.env_errors)?;
        let limit = self.rollout.max_prompt_tokens;
        let Some(longest) = long.iter().map(|prompt| prompt.tokens).max() else { return Ok(count) };
        let named = long.iter().take(NAMED).map(|LongPrompt { task, source, tokens }| {
            let source = source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
            format!("task {task}{source} has {tokens}")
        });
        let more = if long.len() > NAMED { ", …" } else { "" };
        Err(input_error!(
            "{} of {count} tasks of split `{split}` have first prompts over rollout.max_prompt_tokens ({limit}): {}{more}; set \
             rollout.truncation to drop to leave them out, or to left, right or middle to cut them, or set \
             rollout.max_prompt_tokens to {longest}",
            long.len(),
            named.collect::<Vec<_>>().join(", ")
        ))
    }

    /// Rehearses one episode; false where a call into the environment failed.
    fn episode(
        &self,
        env: &mut Env,
        split: &str,
        plan: EpisodePlan,
        prompts: &StepPrompts,
        rehearsed: &mut Rehearsed,
    ) -> Result<bool> {
        let mut playing = EpisodeState::new(plan);
        // As in a run.
        let survive = |error| Failures::new(self.rollout.env_errors).survive(error);
        let seen = match env.reset(split, plan.task, plan.seed) {
            Err(error) => return survive(error).map(|_| false),
            Ok(seen) => seen,
        };
        let admissible = seen.admissible.clone();
        if playing.begin(seen) {
            return Ok(true);
        }
        let settings = PromptSettings { tokenizer: self.tokenizer, rollout: self.rollout, config: self.config };
        let tokens = prompts.next(&playing, 0, settings)?.new;
        rehearsed.prompts.push(tokens.tokens.len());
        let text = with_single_placeholders(&self.tokenizer.decode(&tokens.tokens, false));
        let prompt = RehearsedPrompt { task: plan.task, text, tokens: tokens.tokens.len() };
        rehearsed.first.get_or_insert(prompt);
        let begun = tokens.clone();

        let response = match self.shared_env.has_expert() {
            true => match env.expert_action(&admissible).and_then(|action| env.expert_response(&action)) {
                Err(error) => return survive(error).map(|_| false),
                Ok(response) => response,
            },
            false => String::new(),
        };
        let ids = self.tokenizer.encode(&response).with_context(|| playing.next_step())?;
        let limit = self.rollout.max_response_tokens;
        if self.imitates && ids.len() + 1 > limit {
            return Err(input_error!(
                "{}: the expert's response has {} tokens with its end, rollout.max_response_tokens is {limit}; raise it",
                playing.next_step(),
                ids.len() + 1
            ));
        }
        if self.shared_env.has_expert() {
            rehearsed.responses.push((ids.len() + 1).min(limit));
        }
        let parsed = playing.parsed(&response);
        let taken = TakenResponse {
            text: response.clone(),
            message: json!(parsed.message(0)).to_string(),
            broken_call: parsed.broken,
            cut: false,
            prompt: tokens.tokens.clone(),
            tokens: ids.clone(),
            logprobs: vec![0.0; ids.len()],
        };
        let sampled = StepTokens { prompt: tokens, continues: None, response: ids.clone(), logprobs: Vec::new() };
        playing.respond(sampled, response.clone());
        let seen = match env.respond(taken) {
            Err(error) if error.is::<Stopped>() => return Err(error),
            Err(error) => {
                rehearsed.failures.push(error);
                return Ok(false);
            }
            Ok(seen) => seen,
        };
        let over = seen.terminated || seen.truncated;
        let Observation { reward, valid, ref metrics, .. } = seen;
        let metrics = metrics.clone();
        let ended = playing.observe(seen, self.rollout.max_steps)?;
        let teacher = self.teacher.as_ref().map(|teacher| teacher.prompt(playing.record(), 0)).transpose()?;
        let teacher_prompt = teacher.map(|prompt| self.tokenizer.decode(&prompt.tokens, false));
        let step = RehearsedStep { task: plan.task, response, reward, valid, over, metrics, teacher_prompt };
        rehearsed.step.get_or_insert(step);
        if ended {
            rehearsed.ended += usize::from(over || self.rollout.max_steps == 1);
            return Ok(true);
        }
        let later = prompts.next(&playing, 0, settings)?;
        rehearsed.later.push(later.new.tokens.len());
        rehearsed.common.push(match later.continues {
            Some(_) => begun.tokens.len(),
            None => begun.common(&later.new),
        });
        Ok(true)
    }
}

/// The environment without the tasks of these splits whose first prompts are too long, and a warning for each split that has any.
pub fn without_long(rehearsal: &Rehearsal, splits: &[&str]) -> Result<(SharedEnv, Vec<String>)> {
    let (mut dropped, mut warnings) = (BTreeMap::new(), Vec::new());
    for split in splits {
        let count = rehearsal.shared_env.tasks(split)?;
        let long = rehearsal.dropped(split, count)?;
        if !long.is_empty() {
            warnings.push(format!(
                "rollout.truncation is drop: {} of {count} tasks of split `{split}` are left out, since their first prompts \
                 are over rollout.max_prompt_tokens ({})",
                long.len(),
                rehearsal.rollout.max_prompt_tokens
            ));
        }
        dropped.insert(split.to_string(), long);
    }
    Ok((rehearsal.shared_env.without(dropped), warnings))
}
