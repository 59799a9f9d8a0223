//! The environment's expert plays: what a warm start imitates, and what a small tokenizer is trained on.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::RngExt;

use super::episode_state::EpisodeState;
use super::pool::{Outcome, Pool, Start, Work};
use super::prompt::PromptTemplate;
use super::{EpisodePlan, Player, Turn, template_of};
use crate::data::Episode;
use crate::engine::{NoiseKey, noise};
use crate::input_error;
use crate::plugin::{Env, Observation, SharedEnv};
use crate::recipe::Rollout;

/// One episode for the expert.
pub struct ExpertWork {
    /// Where it starts.
    pub start: Start,
    /// Steps after which it is cut.
    pub max_steps: u32,
    /// Share of the expert's actions that are replaced by a random possible one.
    pub noise: f64,
    /// Seed and address of that randomness.
    pub key: (u64, NoiseKey),
}

/// What the expert did: the observation of the reset, then each response and the observation it led to.
pub struct Demonstration {
    /// What the reset showed.
    pub first: Observation,
    /// Responses and what followed.
    pub steps: Vec<(String, Observation)>,
}

impl ExpertWork {
    /// Plays the episode.
    pub fn play(&self, env: &mut Env) -> Result<Demonstration> {
        let first = env.reset(&self.start.split, self.start.task, self.start.seed)?;
        let mut steps: Vec<(String, Observation)> = Vec::new();
        for step in 0..self.max_steps {
            let now = steps.last().map_or(&first, |(_, seen)| seen);
            if now.terminated || now.truncated {
                break;
            }
            let mut rng = NoiseKey { step, ..self.key.1 }.rng(self.key.0, 0);
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

/// How the expert is disturbed.
#[derive(Debug, Clone, Copy)]
struct ExpertSettings {
    /// Share of its actions that are replaced by a random possible one.
    noise: f64,
    /// Seed of that randomness.
    seed: u64,
}

/// Lets the expert play the plan; demonstrations in its order.
fn demonstrations(
    pool: &mut Pool,
    rollout: &Rollout,
    plan: &[EpisodePlan],
    settings: ExpertSettings,
) -> Result<Vec<Demonstration>> {
    for (index, p) in plan.iter().enumerate() {
        let key = NoiseKey { stream: noise::EXPERT, iteration: p.seed, episode: p.episode, step: 0 };
        let start = Start { split: rollout.split.clone(), task: p.task, seed: p.seed };
        let work = ExpertWork { start, max_steps: rollout.max_steps, noise: settings.noise, key: (settings.seed, key) };
        pool.submit(index, None, Work::Expert(work))?;
    }
    let mut all: Vec<Option<Demonstration>> = plan.iter().map(|_| None).collect();
    for answer in pool.collect(true, Duration::MAX)? {
        let Outcome::Played(played) = answer.outcome? else { bail!("the expert's episode came back as a step") };
        all[answer.index] = Some(played);
    }
    all.into_iter().collect::<Option<Vec<_>>>().context("a demonstration is missing")
}

fn require_expert(world: &SharedEnv) -> Result<()> {
    if world.has_expert() {
        return Ok(());
    }
    Err(input_error!("environment `{}` has no expert, which warm_start and model.new need; leave them out", world.id()))
}

/// The texts of the expert's episodes: every rendered prompt and every response. Needs no tokenizer.
pub fn texts(world: &SharedEnv, rollout: &Rollout, plan: &[EpisodePlan], noise: f64, seed: u64) -> Result<Vec<String>> {
    let settings = ExpertSettings { noise, seed };
    require_expert(world)?;
    let template = template_of(world, rollout)?;
    let mut pool = Pool::new(world, rollout.env_threads)?;
    let mut texts = Vec::new();
    for (plan, played) in plan.iter().zip(demonstrations(&mut pool, rollout, plan, settings)?) {
        let mut playing = EpisodeState::new(*plan);
        playing.begin(played.first);
        for (response, seen) in played.steps {
            texts.push(render(&playing, &template, rollout)?);
            texts.push(response.clone());
            playing.respond(Default::default(), response);
            playing.observe(seen, rollout.max_steps)?;
        }
    }
    Ok(texts)
}

/// The prompt text of an episode as it stands.
pub fn render(playing: &EpisodeState, template: &PromptTemplate, rollout: &Rollout) -> Result<String> {
    template.render(&playing.variables(rollout)).with_context(|| playing.next_step())
}

impl Player {
    /// The expert plays the plan; `noise` is the share of its actions that are replaced by a random possible one. Steps
    /// hold prompt and response ids (an end-of-sequence token last), no log-probs. A conversation without room for more
    /// ends its episode, as in [`Player::play`].
    pub fn demonstrate(&mut self, plan: &[EpisodePlan], noise: f64, seed: u64) -> Result<Vec<Episode>> {
        let settings = ExpertSettings { noise, seed };
        require_expert(&self.world)?;
        let played = demonstrations(&mut self.pool, &self.rollout, plan, settings);
        self.pool.drain();
        let Some(&eos) = self.tokenizer.eos().first() else {
            return Err(input_error!("the tokenizer names no end-of-sequence token, which a demonstration ends with"));
        };
        let mut episodes = Vec::new();
        for (plan, played) in plan.iter().zip(played?) {
            let mut playing = EpisodeState::new(*plan);
            playing.begin(played.first);
            for (text, seen) in played.steps {
                let Some(Turn { new: prompt, .. }) = self.turn(&mut playing)? else { break };
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
