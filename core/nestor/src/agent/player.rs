//! Episodes as state machines: prompt, queue, decode, environment step, next prompt. All episodes of a plan are in
//! flight at once, environments step on threads, and nothing waits for the slowest episode.

mod expert;
pub mod play;
mod episode_state;
mod pool;
mod prompt;
mod report;
mod pack;
mod distributed;
mod tasks;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use self::expert::texts;
use self::episode_state::EpisodeState;
use self::pool::{Outcome, Pool, Start, Work};
pub use self::prompt::{HistoryStep, PromptTemplate, PromptVariables};
pub use self::report::{Count, Scored, Success};
pub use self::pack::pack;
pub use self::tasks::{EpisodePlan, TaskCursor, count_tasks, eval_plan, plan, plan_from};
use crate::data::Episode;
use crate::engine::{Counters, Engine, EngineOptions, NoiseKey, Request, Sampling, Weights, noise};
use crate::error::{InputError, Stopped, message};
use crate::failpoint::failpoint;
use crate::input_error;
use crate::model::Model;
use crate::plugin::SharedEnv;
use crate::recipe::{Eval, Rollout};
use crate::tokenizer::{Message, Tokenizer, Turns};
use crate::track::{Progress, terminal};

/// How long to wait for environments before the first pass, whose duration is not known.
const FIRST_PATIENCE: Duration = Duration::from_millis(5);

/// What a player is made of.
pub struct PlayerOptions {
    /// The policy's tokenizer.
    pub tokenizer: Tokenizer,
    /// The environment.
    pub world: SharedEnv,
    /// How episodes are played.
    pub rollout: Rollout,
    /// Seed of the sampling noise.
    pub seed: u64,
    /// Bit-identical runs: waits for all environments before requests are admitted.
    pub deterministic: bool,
    /// Ends play with [`Stopped`] once it is set.
    pub stop: Arc<AtomicBool>,
    /// Where it says how far it is.
    pub progress: Progress,
}

/// How one plan is played.
#[derive(Debug, Clone)]
pub struct PlaySettings {
    /// Stream of the sampling noise, one of [`noise`].
    pub stream: u32,
    /// Iteration of the run, for the noise.
    pub iteration: u64,
    /// Split of the environment that the tasks come from.
    pub split: String,
    /// How tokens are drawn.
    pub sampling: Sampling,
}

impl PlaySettings {
    /// Training in the given iteration.
    pub fn train(rollout: &Rollout, iteration: u64) -> Self {
        let Rollout { temperature, top_k, top_p, .. } = *rollout;
        let sampling = Sampling { temperature, top_k, top_p };
        Self { stream: noise::TRAIN, iteration, split: rollout.split.clone(), sampling }
    }

    /// Evaluation; its noise is the same in every iteration, so that only the policy makes a difference.
    pub fn eval(eval: &Eval) -> Self {
        let sampling = Sampling { temperature: eval.temperature, ..Sampling::default() };
        Self { stream: noise::EVAL, iteration: 0, split: eval.split.clone(), sampling }
    }
}

/// Plays episodes with a policy, or lets the environment's expert play them.
pub struct Player {
    tokenizer: Tokenizer,
    world: SharedEnv,
    rollout: Rollout,
    deterministic: bool,
    template: PromptTemplate,
    /// How a conversation goes on, where an episode is one.
    turns: Option<Turns>,
    engine: Engine,
    pool: Pool,
    stop: Arc<AtomicBool>,
    /// Failures of environments that were survived.
    env_errors: u64,
    progress: Progress,
}

/// The recipe's prompt template, or the environment's.
fn template_of(world: &SharedEnv, rollout: &Rollout) -> Result<PromptTemplate> {
    match &rollout.template {
        Some(source) => PromptTemplate::new(source, "rollout.template"),
        None => PromptTemplate::new(&world.template()?, format!("the prompt template of environment `{}`", world.id())),
    }
}

impl Player {
    /// A player; starts the environment threads.
    pub fn new(options: PlayerOptions) -> Result<Self> {
        let PlayerOptions { tokenizer, world, rollout, seed, deterministic, stop, progress } = options;
        let tokenizer = tokenizer.with_thinking(rollout.thinking).context("recipe key `rollout.thinking`")?;
        let engine = Engine::new(EngineOptions {
            slots: rollout.slots,
            capacity: rollout.max_tokens(),
            cache_tokens: rollout.cache_tokens.unwrap_or(0),
            deterministic,
            eos: tokenizer.eos().to_vec(),
            seed,
        });
        let template = template_of(&world, &rollout)?;
        let turns = if rollout.is_transcript() { Some(Turns::new(&tokenizer)?) } else { None };
        let pool = Pool::new(&world, rollout.env_threads)?;
        Ok(Self {
            tokenizer,
            world,
            rollout,
            deterministic,
            template,
            turns,
            engine,
            pool,
            stop,
            env_errors: 0,
            progress,
        })
    }

    /// The policy's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The environment.
    pub fn world(&self) -> &SharedEnv {
        &self.world
    }

    /// Tokens generated and computed since the last call.
    pub fn take_counters(&mut self) -> Counters {
        self.engine.take_counters()
    }

    /// Failures of environments that were survived since the last call.
    pub fn take_env_errors(&mut self) -> u64 {
        std::mem::take(&mut self.env_errors)
    }

    /// Plays all episodes of a plan; they come back in its order.
    pub fn play(&mut self, model: &Model, plan: &[EpisodePlan], settings: &PlaySettings) -> Result<Vec<Episode>> {
        let played = self.play_all(model, plan, settings);
        // After an error there may be work under way; and the cache is of no use once the weights change.
        self.pool.drain();
        self.engine.clear();
        played
    }

    fn play_all(&mut self, model: &Model, plan: &[EpisodePlan], settings: &PlaySettings) -> Result<Vec<Episode>> {
        // All ranks gather together, so nothing that may fail at one of them comes before.
        let weights = Weights::new(model)?;
        let index_of: HashMap<u32, usize> = plan.iter().enumerate().map(|(i, p)| (p.episode, i)).collect();
        if index_of.len() != plan.len() {
            bail!("two episodes of a plan have the same number");
        }
        let mut in_flight: Vec<InFlight> = Vec::with_capacity(plan.len());
        let start = |p: &EpisodePlan| Start { split: settings.split.clone(), task: p.task, seed: p.seed };
        for (index, p) in plan.iter().enumerate() {
            self.pool.submit(index, None, Work::Reset(start(p)))?;
            in_flight.push(InFlight { playing: EpisodeState::new(*p), env: None, prompt: Vec::new() });
        }
        let (mut left, mut failures) = (plan.len(), 0);
        self.progress.set_total(left);
        let mut patience = FIRST_PATIENCE;
        while left > 0 {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Stopped.into());
            }
            let wait = if self.deterministic { Duration::MAX } else { patience };
            for answer in self.pool.collect(self.engine.is_idle(), wait)? {
                let table = &mut in_flight[answer.index];
                let (env, seen) = match answer.outcome {
                    Ok(Outcome::Seen(env, seen)) => (env, seen),
                    Ok(Outcome::Played(_)) => bail!("a step came back as an expert's episode"),
                    Err(error) => {
                        failures += 1;
                        self.survive(failures, error)?;
                        if table.playing.step() == 0 {
                            self.pool.submit(answer.index, None, Work::Reset(start(&plan[answer.index])))?;
                        } else {
                            table.playing.fail();
                            left -= 1;
                            self.progress.advance(1, 0);
                        }
                        continue;
                    }
                };
                if table.take(seen, self.rollout.max_steps)? || !self.ask(table, settings)? {
                    self.pool.keep(env);
                    left -= 1;
                    self.progress.advance(1, 0);
                } else {
                    table.env = Some(env);
                }
            }
            if self.engine.is_idle() {
                continue;
            }
            let begin = Instant::now();
            let drawn = self.engine.counters().generated;
            for done in self.engine.step(&weights)? {
                let index = index_of[&done.key.episode];
                let table = &mut in_flight[index];
                let text = self.tokenizer.decode(&done.tokens, true);
                table.playing.respond((std::mem::take(&mut table.prompt), done.tokens, done.logprobs), text.clone());
                self.pool.submit(index, table.env.take(), Work::Step(text))?;
                failpoint("mid-rollout");
            }
            self.progress.advance(0, (self.engine.counters().generated - drawn) as usize);
            // Environments that are about to answer join the next pass if that costs little against it.
            patience = begin.elapsed() / 8;
        }
        Ok(in_flight.into_iter().map(|table| table.playing.finish()).collect())
    }

    /// Counts an error of an environment, the `failures`th of a plan, or gives it back where it ends the run.
    fn survive(&mut self, failures: u64, error: anyhow::Error) -> Result<()> {
        if failures > self.rollout.env_errors || error.chain().any(|cause| cause.is::<InputError>()) {
            return Err(error);
        }
        self.env_errors += 1;
        let (why, allowed) = (message(&error), self.rollout.env_errors);
        terminal::warn(&format!("warning: {why} (failure {failures} of {allowed})"));
        Ok(())
    }

    /// Queues the next step of an episode; false where it was cut instead, for lack of room.
    fn ask(&mut self, table: &mut InFlight, settings: &PlaySettings) -> Result<bool> {
        let Some(Turn { before, new }) = self.turn(&mut table.playing)? else { return Ok(false) };
        let prompt = [&before[..], &new].concat();
        table.prompt = new;
        let episode = table.playing.number();
        let key =
            NoiseKey { stream: settings.stream, iteration: settings.iteration, episode, step: table.playing.step() };
        let max_new_tokens = self.rollout.max_response_tokens;
        self.engine
            .submit(Request { key, prompt, max_new_tokens, sampling: settings.sampling })
            .with_context(|| table.playing.next_step())?;
        Ok(true)
    }

    /// What an episode's next response answers. None where a conversation has no room for it and a response: the
    /// episode ends with its last step.
    fn turn(&self, playing: &mut EpisodeState) -> Result<Option<Turn>> {
        let new = self.prompt(playing)?;
        let before = if self.turns.is_some() { playing.conversation() } else { Vec::new() };
        if before.len() + new.len() + self.rollout.max_response_tokens > self.rollout.max_tokens() {
            playing.cut();
            return Ok(None);
        }
        Ok(Some(Turn { before, new }))
    }

    /// The prompt ids of an episode's next step, one user message, cut to the recipe's limit. In a conversation they go
    /// on after the last response.
    fn prompt(&self, playing: &EpisodeState) -> Result<Vec<u32>> {
        let text = expert::render(playing, &self.template, &self.rollout)?;
        let tokens = match (&self.turns, playing.last_step()) {
            (Some(turns), Some(last)) => turns.follow_up(&self.tokenizer, &last.response, &text),
            _ => self.tokenizer.chat(&[Message::new("user", text)], true),
        };
        let tokens = tokens.with_context(|| playing.next_step())?;
        match prompt::fit(tokens, &self.rollout) {
            Ok(tokens) if tokens.is_empty() => Err(input_error!("{}: the prompt is empty", playing.next_step())),
            fitted => fitted.with_context(|| playing.next_step()),
        }
    }
}

/// Token ids before a response.
struct Turn {
    /// The conversation so far; nothing where each prompt is built afresh.
    before: Vec<u32>,
    /// The step's own.
    new: Vec<u32>,
}

/// An episode under way, its environment while no thread has it, and the prompt that is being answered.
struct InFlight {
    playing: EpisodeState,
    env: Option<crate::plugin::Env>,
    prompt: Vec<u32>,
}

impl InFlight {
    /// Takes what the environment showed; says whether the episode is over.
    fn take(&mut self, seen: crate::plugin::Observation, max_steps: u32) -> Result<bool> {
        if self.playing.step() == 0 {
            return Ok(self.playing.begin(seen));
        }
        self.playing.observe(seen, max_steps)
    }
}
