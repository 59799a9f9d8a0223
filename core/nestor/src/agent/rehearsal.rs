//! The first steps of episodes without a network: a prompt that cannot be rendered, or does not fit, is found before a run.

use anyhow::{Context, Result};

use super::episode_state::{EpisodeState, StepTokens};
use super::failures::Failures;
use super::prompt::PromptTemplate;
use super::tasks::EpisodePlan;
use crate::input_error;
use crate::model::Config;
use crate::plugin::{Env, SharedEnv};
use crate::recipe::Rollout;
use crate::tokenizer::{Tokenizer, Turns};

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RehearsedPrompt {
    pub task: u64,
    /// The text that the model reads, chat template included.
    pub text: String,
    pub tokens: usize,
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
        // As in a run.
        let survive = |error| Failures::new(self.rollout.env_errors).survive(error);
        let seen = match env.reset(split, plan.task, plan.seed) {
            Err(error) => return survive(error).map(|_| None),
            Ok(seen) => seen,
        };
        let admissible = seen.admissible.clone();
        if playing.begin(seen) {
            return Ok(None);
        }
        let settings = (self.rollout, self.config);
        let mut rendered = String::new();
        let tokens = playing.prompt(template, settings, |chat| {
            rendered = self.tokenizer.render(chat, true)?;
            self.tokenizer.encode(&rendered)
        })?;
        let prompt = RehearsedPrompt { task: plan.task, text: rendered, tokens: tokens.tokens.len() };

        let response = match self.shared_env.has_expert() {
            true => match env.expert_action(&admissible).and_then(|action| env.expert_response(&action)) {
                Err(error) => return survive(error).map(|_| Some(prompt)),
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
        let sampled = StepTokens { prompt: tokens, response: ids.clone(), logprobs: Vec::new() };
        playing.respond(sampled, response.clone());
        // An environment may fail in a step, which `rollout.env_errors` is for.
        let Ok(seen) = env.step(&response) else { return Ok(Some(prompt)) };
        if !playing.observe(seen, self.rollout.max_steps)? {
            playing.prompt(template, settings, |chat| match turns {
                Some(turns) => turns.follow_up(self.tokenizer, &ids, chat),
                None => self.tokenizer.chat(chat, true),
            })?;
        }
        Ok(Some(prompt))
    }
}
