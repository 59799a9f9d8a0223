//! The environment's expert plays: a warm start imitates its episodes, and a small tokenizer is trained on their texts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;

use super::environments::{Environments, Idle, Place};
use super::episode_state::{Demonstration, EpisodeState, StepTokens};
use super::failures::{FailedReset, Failures};
use super::player::Player;
use super::pool::Pool;
use super::step_prompt::StepPrompt;
use super::tasks::EpisodePlan;
use crate::data::Episode;
use crate::engine::{NoiseKey, noise};
use crate::error::Stopped;
use crate::input_error;
use crate::plugin::Env;
use crate::recipe::Rollout;
use crate::terminal;
use crate::tokenizer::{IMAGE, Message};

/// The expert of an environment, disturbed by noise.
struct Expert<'a> {
    environments: &'a Environments,
    rollout: &'a Rollout,
    /// Share of its actions that are replaced by a random admissible one.
    noise: f64,
    /// Seed of that randomness.
    seed: u64,
}

/// One episode for the expert, as a thread plays it.
struct ExpertEpisode {
    plan: EpisodePlan,
    place: Place,
    max_steps: u32,
    noise: f64,
    seed: u64,
    /// Filled step by step, so that a failure loses no step before it.
    played: Arc<Played>,
}

/// The part of an episode that was played; none before the reset has succeeded.
#[derive(Default)]
struct Played(Mutex<Option<Demonstration>>);

impl Played {
    fn lock(&self) -> MutexGuard<'_, Option<Demonstration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExpertEpisode {
    fn play(&self, env: &mut Env) -> Result<()> {
        let EpisodePlan { episode, seed, .. } = self.plan;
        let first = env.reset(&self.place.split, self.place.task, seed)?;
        let mut admissible = first.admissible.clone();
        *self.played.lock() = Some(Demonstration { first, steps: Vec::new() });
        for step in 0..self.max_steps {
            let mut rng = NoiseKey { stream: noise::EXPERT, iteration: seed, episode, step }.rng(self.seed, 0);
            // Both draws are always made, so that one setting's choice does not move the other's.
            let (replaced, other): (f64, f64) = (rng.random(), rng.random());
            let any = (other * admissible.len() as f64) as usize;
            let action = match admissible.get(any) {
                Some(action) if replaced < self.noise => action.clone(),
                _ => env.expert_action(&admissible)?,
            };
            let response = env.expert_response(&action)?;
            let seen = env.step(&response)?;
            let over = seen.terminated || seen.truncated;
            admissible.clone_from(&seen.admissible);
            if let Some(played) = &mut *self.played.lock() {
                played.steps.push((response, seen));
            }
            if over {
                break;
            }
        }
        Ok(())
    }
}

/// Refuses environments of which one has no expert.
pub fn check_expert(environments: &Environments) -> Result<()> {
    match environments.members().iter().find(|member| !member.shared_env.has_expert()) {
        None => Ok(()),
        Some(member) => Err(input_error!(
            "environment `{}` has no expert, which warm_start and model.new need; leave them out",
            member.name
        )),
    }
}

impl Expert<'_> {
    /// Plays the plan and returns the demonstrations in its order; none of a task that was given up. A failed reset is
    /// repeated; another failure ends its episode with the step before. Takes environments from `idle` and puts them back.
    fn play(
        &self,
        plan: &[EpisodePlan],
        pool: &mut Pool<()>,
        idle: &mut Idle,
        failures: &mut Failures,
    ) -> Result<Vec<Option<Demonstration>>> {
        // A thread that was left behind may return and fill its part, so a repeated episode has a part of its own.
        let mut parts: Vec<Arc<Played>> = plan.iter().map(|_| Arc::default()).collect();
        let submit = |pool: &mut Pool<()>, index: usize, idle: &mut Idle| {
            let (max_steps, played) = (self.rollout.max_steps, Arc::default());
            let (noise, seed, part) = (self.noise, self.seed, Arc::clone(&played));
            let place = self.environments.place(&self.rollout.split, plan[index].task);
            let instance = idle.take(self.environments, place.member);
            let episode = ExpertEpisode { plan: plan[index], place, max_steps, noise, seed, played };
            pool.submit(index, instance, move |env| episode.play(env));
            part
        };
        let mut waiting: VecDeque<usize> = (0..plan.len()).collect();
        for index in waiting.drain(..pool.threads().min(plan.len())) {
            parts[index] = submit(pool, index, idle);
        }
        let mut all: Vec<Option<Demonstration>> = plan.iter().map(|_| None).collect();
        let (mut remaining, mut resets) = (plan.len(), vec![0; plan.len()]);
        while remaining > 0 {
            if pool.stopped() {
                return Err(Stopped.into());
            }
            for answer in pool.collect(true, Duration::ZERO)? {
                let (played, task) = (parts[answer.index].lock().take(), plan[answer.index].task);
                let (env, again) = match (answer.outcome, &played) {
                    (Ok((env, ())), _) => (Some(env), false),
                    (Err(error), Some(_)) => failures.survive(error).map(|_| (None, false))?,
                    (Err(error), None) => {
                        resets[answer.index] += 1;
                        let failed = failures.survive_reset(task, resets[answer.index], error)?;
                        (None, failed == FailedReset::Repeat)
                    }
                };
                if played.is_some() {
                    failures.reset_succeeded(task);
                }
                all[answer.index] = played;
                match again {
                    true => waiting.push_front(answer.index),
                    false => remaining -= 1,
                }
                if let Some(env) = env {
                    idle.put(self.environments.member(task), env);
                }
                if let Some(index) = waiting.pop_front() {
                    parts[index] = submit(pool, index, idle);
                }
            }
        }
        Ok(all)
    }
}

/// The texts of the experts' episodes: every message of a prompt and every response. Needs no tokenizer.
pub fn texts(
    environments: &Environments,
    rollout: &Rollout,
    plan: &[EpisodePlan],
    noise: f64,
    seed: u64,
) -> Result<Vec<String>> {
    let all = exchanges(environments, rollout, plan, noise, seed)?.into_iter().flat_map(|(chat, response)| {
        chat.iter().map(|message| message.content().to_string()).chain([response]).collect::<Vec<_>>()
    });
    Ok(all.collect())
}

/// The steps of the expert's episodes: the messages of the prompt, and the response. Needs no tokenizer.
pub fn exchanges(
    environments: &Environments,
    rollout: &Rollout,
    plan: &[EpisodePlan],
    noise: f64,
    seed: u64,
) -> Result<Vec<(Vec<Message>, String)>> {
    let expert = Expert { environments, rollout, noise, seed };
    check_expert(environments)?;
    let templates = environments.templates(rollout)?;
    let mut pool = Pool::new(environments, rollout.env_threads)?;
    let (mut exchanges, mut failures) = (Vec::new(), Failures::new(rollout.env_errors));
    let demonstrations = expert.play(plan, &mut pool, &mut Idle::default(), &mut failures);
    failures.faults.lines().iter().for_each(|line| terminal::warn(&format!("warning: {line}")));
    for (plan, played) in plan.iter().zip(demonstrations?) {
        let Some(played) = played else { continue };
        let template = &templates[environments.member(plan.task)];
        let mut playing = EpisodeState::new(*plan);
        playing.begin(played.first);
        for (response, seen) in played.steps {
            // Placeholders of images become tokens of their own.
            let text = playing.render(template, rollout)?.text.replace(IMAGE, "");
            exchanges.push((playing.chat(text, rollout)?, response.clone()));
            playing.respond(StepTokens::default(), response);
            playing.observe(seen, rollout.max_steps)?;
        }
    }
    Ok(exchanges)
}

impl Player {
    /// Lets the expert play the plan; `noise` is the share of its actions that are replaced by a random admissible one.
    /// Steps hold prompt and response ids (an end-of-sequence token last) and no log-probs. A conversation without room
    /// for another response ends its episode, as in [`Player::play`].
    pub fn demonstrate(&mut self, plan: &[EpisodePlan], noise: f64, seed: u64) -> Result<Vec<Episode>> {
        let expert = Expert { environments: &self.environments, rollout: &self.rollout, noise, seed };
        check_expert(&self.environments)?;
        let pool = match &mut self.experts {
            Some(pool) => pool,
            none => none.insert(Pool::new(&self.environments, self.rollout.env_threads)?),
        };
        let mut failures = Failures::new(self.rollout.env_errors);
        let played = expert.play(plan, pool, &mut self.idle, &mut failures);
        let drained = pool.drain();
        self.note(failures);
        drained?;
        let Some(&eos) = self.tokenizer.eos().first() else {
            return Err(input_error!("the tokenizer names no end-of-sequence token, which a demonstration ends with"));
        };
        let mut episodes = Vec::new();
        for (plan, played) in plan.iter().zip(played?) {
            let mut playing = EpisodeState::new(*plan);
            let Some(played) = played else {
                // Without a step there is nothing to imitate.
                episodes.push(playing.finish());
                continue;
            };
            playing.begin(played.first);
            for (text, seen) in played.steps {
                let Some(StepPrompt { new: prompt, continues, .. }) = self.step_prompt(&mut playing)? else { break };
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
                playing.respond(StepTokens { prompt, continues, response, logprobs: Vec::new() }, text);
                playing.observe(seen, self.rollout.max_steps)?;
            }
            episodes.push(playing.finish());
        }
        Ok(episodes)
    }
}
