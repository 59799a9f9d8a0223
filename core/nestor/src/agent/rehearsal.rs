//! The first steps of episodes without a network: a prompt that cannot be rendered, or does not fit, is found before a run.

use anyhow::{Context, Result};

use super::episode_state::EpisodeState;
use super::prompt::{PromptTemplate, fit};
use super::tasks::EpisodePlan;
use crate::error::InputError;
use crate::input_error;
use crate::plugin::{Env, SharedEnv};
use crate::recipe::Rollout;
use crate::tokenizer::{Message, Tokenizer, Turns};

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RehearsedPrompt {
    pub task: u64,
    /// The text that the model reads, chat template included.
    pub text: String,
    pub tokens: usize,
}

/// Plays the first two steps of episodes: with the expert's actions where the environment has an expert that can play,
/// else with an empty response.
pub struct Rehearsal<'a> {
    pub shared_env: &'a SharedEnv,
    pub rollout: &'a Rollout,
    pub tokenizer: &'a Tokenizer,
    /// True if a warm start follows, whose responses must fit too.
    pub imitates: bool,
}

impl Rehearsal<'_> {
    /// Rehearses episodes of a split. Returns the first prompt of the first episode.
    pub fn play(&self, split: &str, plan: &[EpisodePlan]) -> Result<Option<RehearsedPrompt>> {
        let template = PromptTemplate::of(self.shared_env, self.rollout)?;
        let turns = if self.rollout.is_transcript() { Some(Turns::new(self.tokenizer)?) } else { None };
        let mut env = self.shared_env.spawn()?;
        let mut first = None;
        for plan in plan {
            let prompt = self.episode(&mut env, split, *plan, &template, turns.as_ref())?;
            first = first.or(prompt);
        }
        Ok(first)
    }

    fn episode(
        &self,
        env: &mut Env,
        split: &str,
        plan: EpisodePlan,
        template: &PromptTemplate,
        turns: Option<&Turns>,
    ) -> Result<Option<RehearsedPrompt>> {
        let mut playing = EpisodeState::new(plan);
        let seen = match env.reset(split, plan.task, plan.seed) {
            // The run would repeat such a reset.
            Err(error) if self.rollout.env_errors > 0 && !error.is::<InputError>() => return Ok(None),
            seen => seen?,
        };
        let admissible = seen.admissible.clone();
        if playing.begin(seen) {
            return Ok(None);
        }
        let text = playing.render(template, self.rollout)?;
        let chat = [Message::new("user", text)];
        let rendered = self.tokenizer.render(&chat, true).with_context(|| playing.next_step())?;
        let tokens = self.fit(self.tokenizer.chat(&chat, true), &playing)?;
        let prompt = RehearsedPrompt { task: plan.task, text: rendered, tokens: tokens.len() };

        let response = match self.shared_env.has_expert() {
            // Some plugins learn from their config whether there is an expert. A run that imitates none can do without.
            true => match env.expert_action(&admissible).and_then(|action| env.expert_response(&action)) {
                Err(_) if !self.imitates => String::new(),
                response => response?,
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
        let sampled = (tokens, ids.clone(), Vec::new());
        playing.respond(sampled, response.clone());
        // An environment may fail in a step, which `rollout.env_errors` is for.
        let Ok(seen) = env.step(&response) else { return Ok(Some(prompt)) };
        if !playing.observe(seen, self.rollout.max_steps)? {
            let text = playing.render(template, self.rollout)?;
            let tokens = match turns {
                Some(turns) => turns.follow_up(self.tokenizer, &ids, &text),
                None => self.tokenizer.chat(&[Message::new("user", text)], true),
            };
            self.fit(tokens, &playing)?;
        }
        Ok(Some(prompt))
    }

    /// The tokens of a prompt, if they fit.
    fn fit(&self, tokens: Result<Vec<u32>>, playing: &EpisodeState) -> Result<Vec<u32>> {
        match tokens.and_then(|tokens| fit(tokens, self.rollout)).with_context(|| playing.next_step())? {
            tokens if tokens.is_empty() => Err(input_error!("{}: the prompt is empty", playing.next_step())),
            tokens => Ok(tokens),
        }
    }
}
