//! The environment's expert plays: a warm start imitates its episodes, and a small tokenizer is trained on their texts.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;

use super::episode_state::{Demonstration, EpisodeState};
use super::player::{Player, StepPrompt};
use super::pool::Pool;
use super::prompt::PromptTemplate;
use super::tasks::EpisodePlan;
use crate::data::Episode;
use crate::engine::{NoiseKey, noise};
use crate::input_error;
use crate::plugin::{Env, Observation, SharedEnv};
use crate::recipe::Rollout;

/// The expert of an environment, disturbed by noise.
struct Expert<'a> {
    rollout: &'a Rollout,
    /// Share of its actions that are replaced by a random admissible one.
    noise: f64,
    /// Seed of that randomness.
    seed: u64,
}

/// One episode for the expert, as a thread plays it.
struct ExpertEpisode {
    plan: EpisodePlan,
    split: String,
    max_steps: u32,
    noise: f64,
    seed: u64,
}

impl ExpertEpisode {
    fn play(&self, env: &mut Env) -> Result<Demonstration> {
        let EpisodePlan { episode, task, seed, .. } = self.plan;
        let first = env.reset(&self.split, task, seed)?;
        let mut steps: Vec<(String, Observation)> = Vec::new();
        for step in 0..self.max_steps {
            let now = steps.last().map_or(&first, |(_, seen)| seen);
            if now.terminated || now.truncated {
                break;
            }
            let mut rng = NoiseKey { stream: noise::EXPERT, iteration: seed, episode, step }.rng(self.seed, 0);
            // Both draws are always made, so that one setting's choice does not move the other's.
            let (replaced, other): (f64, f64) = (rng.random(), rng.random());
            let any = (other * now.admissible.len() as f64) as usize;
            let action = match now.admissible.get(any) {
                Some(action) if replaced < self.noise => action.clone(),
                _ => env.expert_action()?,
            };
            let response = env.expert_response(&action)?;
            let seen = env.step(&response)?;
            steps.push((response, seen));
        }
        Ok(Demonstration { first, steps })
    }
}

/// Refuses an environment without an expert.
pub fn check_expert(shared_env: &SharedEnv) -> Result<()> {
    if shared_env.has_expert() {
        return Ok(());
    }
    Err(input_error!(
        "environment `{}` has no expert, which warm_start and model.new need; leave them out",
        shared_env.id()
    ))
}

impl Expert<'_> {
    /// Plays the plan and returns the demonstrations in its order. Takes environments from `idle` and puts them back.
    fn play(
        &self,
        plan: &[EpisodePlan],
        pool: &mut Pool<Demonstration>,
        idle: &mut Vec<Env>,
    ) -> Result<Vec<Demonstration>> {
        let Rollout { split, max_steps, .. } = self.rollout;
        for (index, &plan) in plan.iter().enumerate() {
            let (split, max_steps) = (split.clone(), *max_steps);
            let episode = ExpertEpisode { plan, split, max_steps, noise: self.noise, seed: self.seed };
            pool.submit(index, idle.pop(), move |env| episode.play(env))?;
        }
        let mut all: Vec<Option<Demonstration>> = plan.iter().map(|_| None).collect();
        for answer in pool.collect(true, Duration::MAX)? {
            let (env, played) = answer.outcome?;
            idle.push(env);
            all[answer.index] = Some(played);
        }
        all.into_iter().collect::<Option<Vec<_>>>().context("a demonstration is missing")
    }
}

/// The texts of the expert's episodes: every rendered prompt and every response. Needs no tokenizer.
pub fn texts(
    shared_env: &SharedEnv,
    rollout: &Rollout,
    plan: &[EpisodePlan],
    noise: f64,
    seed: u64,
) -> Result<Vec<String>> {
    let expert = Expert { rollout, noise, seed };
    check_expert(shared_env)?;
    let template = PromptTemplate::of(shared_env, rollout)?;
    let mut pool = Pool::new(shared_env, rollout.env_threads)?;
    let mut texts = Vec::new();
    for (plan, played) in plan.iter().zip(expert.play(plan, &mut pool, &mut Vec::new())?) {
        let mut playing = EpisodeState::new(*plan);
        playing.begin(played.first);
        for (response, seen) in played.steps {
            texts.push(playing.render(&template, rollout)?);
            texts.push(response.clone());
            playing.respond(Default::default(), response);
            playing.observe(seen, rollout.max_steps)?;
        }
    }
    Ok(texts)
}

impl Player {
    /// Lets the expert play the plan; `noise` is the share of its actions that are replaced by a random admissible one.
    /// Steps hold prompt and response ids (an end-of-sequence token last) and no log-probs. A conversation without room
    /// for another response ends its episode, as in [`Player::play`].
    pub fn demonstrate(&mut self, plan: &[EpisodePlan], noise: f64, seed: u64) -> Result<Vec<Episode>> {
        let expert = Expert { rollout: &self.rollout, noise, seed };
        check_expert(&self.shared_env)?;
        let pool = match &mut self.experts {
            Some(pool) => pool,
            none => none.insert(Pool::new(&self.shared_env, self.rollout.env_threads)?),
        };
        let played = expert.play(plan, pool, &mut self.idle);
        pool.drain();
        let Some(&eos) = self.tokenizer.eos().first() else {
            return Err(input_error!("the tokenizer names no end-of-sequence token, which a demonstration ends with"));
        };
        let mut episodes = Vec::new();
        for (plan, played) in plan.iter().zip(played?) {
            let mut playing = EpisodeState::new(*plan);
            playing.begin(played.first);
            for (text, seen) in played.steps {
                let Some(StepPrompt { new: prompt, .. }) = self.step_prompt(&mut playing)? else { break };
                let mut response = self.tokenizer.encode(&text).with_context(|| playing.next_step())?;
                response.push(eos);
                let limit = self.rollout.max_response_tokens;
                if response.len() > limit {
                    return Err(input_error!(
                        "{}: the expert's response has {} tokens, rollout.max_response_tokens is {limit}; raise it",
                        playing.next_step(),
                        response.len()
                    ));
                }
                playing.respond((prompt, response, Vec::new()), text);
                playing.observe(seen, self.rollout.max_steps)?;
            }
            episodes.push(playing.finish());
        }
        Ok(episodes)
    }
}
