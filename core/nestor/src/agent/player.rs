//! The player: all episodes of a plan are in flight at once, environments step on threads, and nothing waits for the
//! slowest episode.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::environments::{Environments, Idle, Instance};
use super::episode_state::{EpisodeState, StepTokens};
use super::failures::{FailedReset, Failures, Faults};
use super::pool::Pool;
use super::step_prompt::{Place, PromptSettings, StepPrompt, StepPrompts};
use super::tasks::EpisodePlan;
use crate::data::Episode;
use crate::engine::{
    Completion, Counters, Engine, EngineOptions, FinishReason, NoiseKey, Request, Sampling, Spent, Weights, noise,
};
use crate::error::Stopped;
use crate::failpoint::failpoint;
use crate::model::vision::placed;
use crate::model::{Config, Model};
use crate::plugin::{Env, Observation, TakenResponse};
use crate::progress::Progress;
use crate::recipe::{Eval, Rollout};
use crate::terminal;
use crate::tokenizer::{Ends, Tokenizer};

/// Wait for environments before the first pass, whose duration is not known.
const FIRST_PATIENCE: Duration = Duration::from_millis(5);

/// Parts of a player.
pub struct PlayerOptions {
    pub tokenizer: Tokenizer,
    /// That of the models that play, for the tokens of images.
    pub config: Config,
    pub environments: Environments,
    pub rollout: Rollout,
    /// Seed of the sampling noise.
    pub seed: u64,
    /// Bit-identical runs: waits for all environments before requests are admitted.
    pub deterministic: bool,
    /// Ends play with [`Stopped`] once it is set.
    pub stop: Arc<AtomicBool>,
    /// Counts the episodes that are over and the tokens.
    pub progress: Progress,
}

/// Settings of one play of a plan.
#[derive(Debug, Clone)]
pub struct PlaySettings {
    /// Stream of the sampling noise, one of [`noise`].
    pub stream: u32,
    /// Iteration of the run, for the noise.
    pub iteration: u64,
    /// Split of the environment that the tasks come from.
    pub split: String,
    pub sampling: Sampling,
}

impl PlaySettings {
    /// Training in the given iteration.
    pub fn train(rollout: &Rollout, iteration: u64) -> Self {
        let Rollout { temperature, top_k, top_p, min_p, .. } = *rollout;
        let sampling = Sampling { temperature, top_k, top_p, min_p };
        Self { stream: noise::TRAIN, iteration, split: rollout.split.clone(), sampling }
    }

    /// For an iteration's greedy episodes.
    pub fn greedy(rollout: &Rollout, iteration: u64) -> Self {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        Self { sampling, ..Self::train(rollout, iteration) }
    }

    /// Evaluation; its noise is the same in every iteration, so that only the policy makes a difference.
    pub fn eval(eval: &Eval) -> Self {
        let sampling = Sampling { temperature: eval.temperature, ..Sampling::default() };
        Self { stream: noise::EVAL, iteration: 0, split: eval.split.clone(), sampling }
    }
}

/// The time of plays with a policy since it was last taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlayTime {
    /// Passes of the engine.
    pub engine: Spent,
    /// Waits for environments, during which nothing was computed.
    pub env_wait: Duration,
}

/// Plays episodes with a policy, or lets the environment's expert play them.
pub struct Player {
    pub(super) tokenizer: Tokenizer,
    ends: Ends,
    config: Config,
    pub(super) environments: Environments,
    pub(super) rollout: Rollout,
    pub(super) idle: Idle,
    deterministic: bool,
    prompts: StepPrompts,
    /// A warning that a chat template rewrites conversations is out.
    warned: bool,
    engine: Engine,
    pool: Pool<Observation>,
    /// Threads for the expert's episodes, from the first demonstration on.
    pub(super) experts: Option<Pool<()>>,
    stop: Arc<AtomicBool>,
    /// Survived failures of environments, and the faults behind them.
    pub(super) env_errors: u64,
    pub(super) faults: Faults,
    progress: Progress,
    env_wait: Duration,
}

impl Player {
    /// Starts the environment threads.
    pub fn new(options: PlayerOptions) -> Result<Self> {
        let PlayerOptions { tokenizer, config, environments, rollout, seed, deterministic, stop, progress } = options;
        let tokenizer = tokenizer.with_thinking(rollout.thinking).context("recipe key `rollout.thinking`")?;
        let ends = Ends::new(&tokenizer, &rollout.stop);
        let engine = Engine::new(EngineOptions {
            slots: rollout.slots,
            capacity: rollout.max_tokens(),
            cache_tokens: rollout.cache_tokens.unwrap_or(0),
            deterministic,
            ends: ends.clone(),
            seed,
            ..EngineOptions::default()
        });
        let prompts = StepPrompts::new(environments.templates(&rollout)?, &tokenizer, &rollout)?;
        let pool = Pool::new(&environments, rollout.env_threads)?;
        Ok(Self {
            tokenizer,
            ends,
            config,
            environments,
            rollout,
            idle: Idle::default(),
            deterministic,
            prompts,
            warned: false,
            engine,
            pool,
            experts: None,
            stop,
            env_errors: 0,
            faults: Faults::default(),
            progress,
            env_wait: Duration::ZERO,
        })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The ends of responses.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    pub fn environments(&self) -> &Environments {
        &self.environments
    }

    /// Tokens generated and computed since the last call.
    pub fn take_counters(&mut self) -> Counters {
        self.engine.take_counters()
    }

    /// Time of plays with a policy since the last call.
    pub fn take_time(&mut self) -> PlayTime {
        PlayTime { engine: self.engine.take_spent(), env_wait: std::mem::take(&mut self.env_wait) }
    }

    /// Survived failures of environments since the last call.
    pub fn take_env_errors(&mut self) -> u64 {
        std::mem::take(&mut self.env_errors)
    }

    /// The faults behind them since the last call.
    pub fn take_faults(&mut self) -> Faults {
        std::mem::take(&mut self.faults)
    }

    /// Notes the failures of a plan, also where one more ended it.
    pub(super) fn note(&mut self, failures: Failures) {
        self.env_errors += failures.count;
        self.faults.extend(failures.faults);
    }

    /// Plays all episodes of a plan and returns them in its order. Those that an environment failed in are marked.
    pub fn play(&mut self, model: &Model, plan: &[EpisodePlan], settings: &PlaySettings) -> Result<Vec<Episode>> {
        let mut failures = Failures::new(self.rollout.env_errors);
        let played = self.play_all(model, plan, settings, &mut failures);
        self.note(failures);
        // After an error there may be work under way; and the cache is of no use once the weights change.
        let drained = self.pool.drain();
        self.engine.clear();
        let episodes = played?;
        drained.map(|()| episodes)
    }

    fn play_all(
        &mut self,
        model: &Model,
        plan: &[EpisodePlan],
        settings: &PlaySettings,
        failures: &mut Failures,
    ) -> Result<Vec<Episode>> {
        // All ranks gather together, so nothing that may fail at one of them comes before.
        let weights = Weights::new(model)?;
        let index_of: HashMap<u32, usize> = plan.iter().enumerate().map(|(i, p)| (p.episode, i)).collect();
        if index_of.len() != plan.len() {
            bail!("two episodes of a plan have the same number");
        }
        let most = self.rollout.open_episodes.unwrap_or(plan.len());
        let mut in_flight: Vec<EpisodeInFlight> = Vec::with_capacity(plan.len());
        let mut remaining = plan.len();
        self.progress.set_total(remaining);
        let mut patience = FIRST_PATIENCE;
        while remaining > 0 {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Stopped.into());
            }
            // All at once, or another one for each that is over.
            let over = plan.len() - remaining;
            for p in plan.iter().skip(in_flight.len()).take(most.saturating_sub(in_flight.len() - over)) {
                self.reset(in_flight.len(), p, settings);
                in_flight.push(EpisodeInFlight::new(*p));
            }
            let wait = if self.deterministic { Duration::MAX } else { patience };
            let begin = Instant::now();
            let mut answers = self.pool.collect(self.engine.is_idle(), wait)?;
            self.env_wait += begin.elapsed();
            // So that a deterministic run gives up the same tasks.
            answers.sort_by_key(|answer| answer.index);
            for answer in answers {
                let (current, task) = (&mut in_flight[answer.index], plan[answer.index].task);
                let resets = current.playing.step() == 0;
                let (env, seen) = match answer.outcome {
                    Ok((env, seen)) => (env, seen),
                    Err(error) => {
                        let failure = match resets {
                            true => failures.survive_reset(task, current.resets, error)?,
                            false => FailedReset::GiveUp(failures.survive(error)?),
                        };
                        match failure {
                            FailedReset::Repeat => {
                                current.resets += 1;
                                self.reset(answer.index, &plan[answer.index], settings);
                            }
                            FailedReset::GiveUp(failure) => {
                                current.playing.fail(failure);
                                remaining -= 1;
                                self.progress.advance(1, 0);
                            }
                        }
                        continue;
                    }
                };
                if resets {
                    failures.reset_succeeded(task);
                }
                if current.observe(seen, self.rollout.max_steps)? || !self.ask(current, settings)? {
                    self.idle.put(self.environments.member(task), env);
                    remaining -= 1;
                    self.progress.advance(1, 0);
                } else {
                    current.env = Some(env);
                }
            }
            if self.engine.is_idle() {
                continue;
            }
            let begin = Instant::now();
            let drawn = self.engine.counters().generated;
            for done in self.engine.step(&weights)? {
                let index = index_of[&done.key.episode];
                let current = &mut in_flight[index];
                let text = self.tokenizer.decode(&done.tokens, true);
                let response = current.respond(done, text);
                let env = current.env.take().context("an episode in flight has lost its environment")?;
                self.pool.submit(index, Instance::Open(env), move |env| env.respond(response));
                failpoint("mid-rollout");
            }
            self.progress.advance(0, (self.engine.counters().generated - drawn) as usize);
            // Environments that are about to answer join the next pass if that costs little against it.
            patience = begin.elapsed() / 8;
        }
        Ok(in_flight.into_iter().map(|current| self.environments.named(current.playing.finish())).collect())
    }

    /// Has a thread reset an environment for the plan's episode `index`.
    fn reset(&mut self, index: usize, plan: &EpisodePlan, settings: &PlaySettings) {
        let (place, seed) = (self.environments.place(&settings.split, plan.task), plan.seed);
        let instance = self.idle.take(&self.environments, place.member);
        self.pool.submit(index, instance, move |env| env.reset(&place.split, place.task, seed));
    }

    /// Queues the next step of an episode; false where it was cut instead, for lack of room.
    fn ask(&mut self, current: &mut EpisodeInFlight, settings: &PlaySettings) -> Result<bool> {
        let playing = &mut current.playing;
        let Some(asked) = self.step_prompt(playing)? else { return Ok(false) };
        let prompt = asked.tokens();
        let images = playing.images(asked.before.len(), &asked.new);
        let images = placed(&images, &prompt, &self.config).with_context(|| playing.next_step())?;
        current.prompt = asked;
        let PlaySettings { stream, iteration, sampling, .. } = *settings;
        let key = NoiseKey { stream, iteration, episode: playing.number(), step: playing.step() };
        let max_new_tokens = self.rollout.max_response_tokens;
        let request = Request { key, prompt, images, max_new_tokens, sampling };
        self.engine.submit(request).with_context(|| playing.next_step())?;
        Ok(true)
    }

    /// The tokens before an episode's next response. None where a conversation has no room for them and a response: the
    /// episode ends with its last step.
    pub(super) fn step_prompt(&mut self, playing: &mut EpisodeState) -> Result<Option<StepPrompt>> {
        let member = self.environments.member(playing.record().task);
        let Self { tokenizer, rollout, config, .. } = self;
        let prompt = self.prompts.next(playing, member, PromptSettings { tokenizer, rollout, config })?;
        let room = rollout.max_tokens().saturating_sub(rollout.max_response_tokens);
        if prompt.before.len() + prompt.new.tokens.len() > room {
            playing.cut();
            return Ok(None);
        }
        if playing.whole_conversation().is_some() && prompt.place != Place::Continues {
            playing.count_conversation();
        }
        if prompt.place == Place::Rewritten && !std::mem::replace(&mut self.warned, true) {
            terminal::warn(&format!(
                "warning: {}: the model's chat template writes earlier messages in another way once others follow (as one that drops \
                 thoughts), so this prompt is encoded anew and begins another sequence; so do all such prompts",
                playing.next_step()
            ));
        }
        Ok(Some(prompt))
    }
}

/// An episode under way, its environment while no thread has it, and the prompt that is being answered.
struct EpisodeInFlight {
    playing: EpisodeState,
    /// Resets so far.
    resets: u32,
    env: Option<Env>,
    prompt: StepPrompt,
}

impl EpisodeInFlight {
    /// An episode whose environment is being reset.
    fn new(plan: EpisodePlan) -> Self {
        Self { playing: EpisodeState::new(plan), resets: 1, env: None, prompt: StepPrompt::default() }
    }

    /// Records a response; returns it as the environment gets it.
    fn respond(&mut self, done: Completion, text: String) -> TakenResponse {
        let asked = std::mem::take(&mut self.prompt);
        let parsed = self.playing.parsed(&text);
        let message = json!(parsed.message(self.playing.step())).to_string();
        let (cut, prompt) = (done.finished == FinishReason::Length, asked.tokens());
        let StepPrompt { new, continues, .. } = asked;
        let Completion { tokens, logprobs, .. } = done;
        let sampled = StepTokens { prompt: new, continues, response: tokens.clone(), logprobs: logprobs.clone() };
        self.playing.respond(sampled, text.clone());
        TakenResponse { text, message, broken_call: parsed.broken, cut, prompt, tokens, logprobs }
    }

    /// Records an observation; true if the episode is over.
    fn observe(&mut self, seen: Observation, max_steps: u32) -> Result<bool> {
        if self.playing.step() == 0 {
            return Ok(self.playing.begin(seen));
        }
        self.playing.observe(seen, max_steps)
    }
}
