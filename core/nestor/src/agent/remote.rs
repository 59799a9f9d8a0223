//! Plays episodes with a model that another program serves. Each step sends its messages; the server has the chat template and the
//! tokenizer, and nothing here counts or cuts tokens before an answer.

use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use nestor_chat::{Client, Failure, Said};
use rand_chacha::rand_core::Rng;
use serde_json::{Value, json};

use super::environments::{Environments, Idle, Instance};
use super::episode_state::{EpisodeState, StepTokens};
use super::failures::{FailedReset, Failures, Faults};
use super::pool::{Answer, Pool};
use super::prompt::PromptTemplate;
use super::tasks::EpisodePlan;
use crate::data::{Episode, Message};
use crate::engine::{NoiseKey, noise};
use crate::input_error;
use crate::plugin::{Env, Observation, TakenResponse};
use crate::progress::Progress;
use crate::recipe::Rollout;
use crate::tokenizer::Ends;

/// Wait for environments, and for answers, before the other ones are looked at.
const TURN: Duration = Duration::from_millis(2);
/// Stands for a token of a response, of which a server tells the number alone.
const TOKEN: u32 = 0;
/// Stands for the last token of a response that ended by itself.
const END: u32 = 1;

/// The ends of the responses in the episodes of a [`RemotePlayer`].
pub fn remote_ends() -> Ends {
    vec![END].into()
}

/// Parts of a player.
pub struct RemoteOptions {
    pub client: Client,
    /// The model's name at the server.
    pub model: String,
    /// The server leaves a stop text in an answer. For any other one responses are cut here, once they have come whole.
    pub keeps_stop: bool,
    pub environments: Environments,
    pub rollout: Rollout,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Seed of the requests' seeds.
    pub seed: u64,
    /// Counts the episodes that are over and the tokens.
    pub progress: Progress,
}

/// An episode that was played, with the messages of each step's request.
#[derive(Debug, Clone)]
pub struct RemoteEpisode {
    pub episode: Episode,
    pub asked: Vec<Vec<Message>>,
}

/// Plays a plan of episodes.
pub struct RemotePlayer {
    options: RemoteOptions,
    /// One for each environment.
    templates: Vec<PromptTemplate>,
    pool: Pool<Observation>,
    idle: Idle,
    faults: Faults,
    /// The longest prompt over `rollout.max_prompt_tokens`.
    too_long: Option<usize>,
}

/// An episode under way.
struct InFlight {
    playing: EpisodeState,
    /// Resets so far.
    resets: u32,
    env: Option<Env>,
    /// The conversation of a transcript.
    conversation: Vec<Message>,
    asked: Vec<Vec<Message>>,
}

impl RemotePlayer {
    /// Starts the environment threads.
    pub fn new(options: RemoteOptions) -> Result<Self> {
        let templates = options.environments.templates(&options.rollout)?;
        let pool = Pool::new(&options.environments, options.rollout.env_threads)?;
        Ok(Self { options, templates, pool, idle: Idle::default(), faults: Faults::default(), too_long: None })
    }

    /// Warnings about the play: failures of environments, and prompts that a run would cut or refuse.
    pub fn warnings(&self) -> Vec<String> {
        let long = self.too_long.map(|tokens| {
            format!(
                "a prompt has {tokens} tokens at the endpoint, and rollout.max_prompt_tokens is {}: an endpoint gets it whole",
                self.options.rollout.max_prompt_tokens
            )
        });
        self.faults.lines().into_iter().chain(long).collect()
    }

    /// Plays all episodes of a plan and returns them in its order. Those that an environment failed in are marked.
    pub fn play(&mut self, split: &str, plan: &[EpisodePlan]) -> Result<Vec<RemoteEpisode>> {
        let mut failures = Failures::new(self.options.rollout.env_errors);
        let played = self.play_all(split, plan, &mut failures);
        self.faults.extend(failures.faults);
        // After an error there may be work under way.
        let drained = self.pool.drain();
        let episodes = played?;
        drained.map(|()| episodes)
    }

    fn play_all(&mut self, split: &str, plan: &[EpisodePlan], failures: &mut Failures) -> Result<Vec<RemoteEpisode>> {
        let mut in_flight: Vec<InFlight> = plan.iter().map(|one| InFlight::new(*one)).collect();
        (0..plan.len()).for_each(|index| self.reset(index, split, &plan[index]));
        let mut remaining = plan.len();
        self.options.progress.set_total(remaining);
        while remaining > 0 {
            let mut over = 0;
            for Answer { index, outcome } in self.pool.collect(self.options.client.is_idle(), TURN)? {
                let current = &mut in_flight[index];
                over += usize::from(match outcome {
                    Ok((env, seen)) => {
                        if current.playing.step() == 0 {
                            failures.reset_succeeded(plan[index].task);
                        }
                        self.observe(index, current, (env, seen))?
                    }
                    Err(error) => match current.failed(plan[index].task, error, failures)? {
                        FailedReset::Repeat => {
                            self.reset(index, split, &plan[index]);
                            false
                        }
                        FailedReset::GiveUp(failure) => {
                            current.playing.fail(failure);
                            true
                        }
                    },
                });
            }
            for (index, said) in self.options.client.answers(TURN) {
                let current = &mut in_flight[index];
                let said = said.map_err(|failure| explained(failure).context(current.playing.next_step()))?;
                over += usize::from(self.respond(index, current, said));
            }
            remaining -= over;
            self.options.progress.advance(over, 0);
        }
        let environments = &self.options.environments;
        let named =
            |one: InFlight| RemoteEpisode { episode: environments.named(one.playing.finish()), asked: one.asked };
        Ok(in_flight.into_iter().map(named).collect())
    }

    /// Has a thread reset an environment for the plan's episode `index`.
    fn reset(&mut self, index: usize, split: &str, plan: &EpisodePlan) {
        let (place, seed) = (self.options.environments.place(split, plan.task), plan.seed);
        let instance = self.idle.take(&self.options.environments, place.member);
        self.pool.submit(index, instance, move |env| env.reset(&place.split, place.task, seed));
    }

    /// Records an observation and asks for the next response; true if the episode is over.
    fn observe(&mut self, index: usize, current: &mut InFlight, (env, seen): (Env, Observation)) -> Result<bool> {
        let over = match current.playing.step() {
            0 => current.playing.begin(seen),
            _ => current.playing.observe(seen, self.options.rollout.max_steps)?,
        };
        let member = self.options.environments.member(current.playing.record().task);
        if over {
            self.idle.put(member, env);
            return Ok(true);
        }
        current.env = Some(env);
        let mut messages = current.playing.messages(&self.templates[member], &self.options.rollout)?;
        if self.options.rollout.is_transcript() && current.playing.whole_conversation().is_none() {
            current.conversation.append(&mut messages);
            messages.clone_from(&current.conversation);
        }
        let body = self.request(&current.playing, &messages);
        self.options.client.ask(index, body);
        current.asked.push(messages);
        Ok(false)
    }

    /// Puts the instance of an episode that is over back.
    fn give_back(&mut self, over: &mut InFlight) {
        let member = self.options.environments.member(over.playing.record().task);
        over.env.take().into_iter().for_each(|env| self.idle.put(member, env));
    }

    /// The body of a request.
    fn request(&self, playing: &EpisodeState, messages: &[Message]) -> Value {
        let RemoteOptions { model, keeps_stop, rollout, temperature, seed, .. } = &self.options;
        let mut body = json!({
            "model": model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": rollout.max_response_tokens,
        });
        if *temperature > 0.0 {
            let key = NoiseKey { stream: noise::EVAL, iteration: 0, episode: playing.number(), step: playing.step() };
            body["seed"] = (key.rng(*seed, 0).next_u32() >> 1).into();
        }
        if let Some(tools) = playing.tools() {
            body["tools"] = json!(tools);
        }
        if *keeps_stop && !rollout.stop.is_empty() {
            body["stop"] = json!(rollout.stop);
            body["include_stop_str_in_output"] = true.into();
        }
        if let Some(thinking) = rollout.thinking {
            body["chat_template_kwargs"] = json!({ "enable_thinking": thinking });
        }
        body
    }

    /// Records a response and has the environment step; true if the episode is over instead, for lack of room.
    fn respond(&mut self, index: usize, current: &mut InFlight, said: Said) -> bool {
        let RemoteOptions { rollout, keeps_stop, .. } = &self.options;
        let Said { message, mut text, mut cut, prompt_tokens, tokens } = said;
        let is_conversation = rollout.is_transcript() || current.playing.whole_conversation().is_some();
        let room = rollout.max_tokens().saturating_sub(rollout.max_response_tokens);
        match prompt_tokens {
            // A run would not have asked.
            Some(prompt) if is_conversation && prompt > room => {
                current.playing.cut();
                current.asked.pop();
                self.give_back(current);
                return true;
            }
            Some(prompt) if !is_conversation && prompt > rollout.max_prompt_tokens => {
                self.too_long = self.too_long.max(Some(prompt));
            }
            _ => {}
        }
        let stop = rollout.stop.iter().filter_map(|stop| Some(text.find(stop)? + stop.len())).min();
        if let Some(end) = stop.filter(|_| !keeps_stop) {
            text.truncate(end);
            cut = false;
        }
        let step = current.playing.step();
        let parsed = current.playing.parsed(&text);
        // The server's own ids of calls, where it takes them apart.
        let message = if message.keys.contains_key("tool_calls") { message } else { parsed.message(step) };
        if rollout.is_transcript() {
            current.conversation.push(message.clone());
        }
        let mut response = vec![TOKEN; tokens.unwrap_or(1).max(1)];
        if let Some(last) = response.last_mut().filter(|_| !cut) {
            *last = END;
        }
        self.options.progress.advance(0, response.len());
        current.playing.respond(StepTokens { response, ..StepTokens::default() }, text.clone());
        let (message, broken_call) = (json!(message).to_string(), parsed.broken);
        let (prompt, tokens, logprobs) = (Vec::new(), Vec::new(), Vec::new());
        let response = TakenResponse { text, message, broken_call, cut, prompt, tokens, logprobs };
        if let Some(env) = current.env.take() {
            self.pool.submit(index, Instance::Open(env), move |env| env.respond(response));
        }
        false
    }
}

impl InFlight {
    fn new(plan: EpisodePlan) -> Self {
        let playing = EpisodeState::new(plan);
        Self { playing, resets: 1, env: None, conversation: Vec::new(), asked: Vec::new() }
    }

    /// Judges an error of the environment.
    fn failed(&mut self, task: u64, error: Error, failures: &mut Failures) -> Result<FailedReset> {
        if self.playing.step() > 0 {
            return Ok(FailedReset::GiveUp(failures.survive(error)?));
        }
        let failed = failures.survive_reset(task, self.resets, error)?;
        self.resets += u32::from(failed == FailedReset::Repeat);
        Ok(failed)
    }
}

/// A failure of the endpoint with its remedy.
fn explained(failure: Failure) -> Error {
    match &failure {
        Failure::Refused { status: 401 | 403, .. } => {
            input_error!("{failure}; give the key by --api-key or OPENAI_API_KEY")
        }
        Failure::Refused { status: 400 | 413 | 422, message, .. } if message.contains("context") => input_error!(
            "{failure}; the endpoint's context must hold the prompt and rollout.max_response_tokens: serve the model with a longer \
             one, or shorten the prompts (rollout.history, rollout.template)"
        ),
        Failure::Refused { status: 400..=499, .. } => input_error!("{failure}"),
        _ => anyhow!("{failure}"),
    }
}
