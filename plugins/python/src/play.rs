//! One instance: an environment in a worker, and the episode that it plays.

use anyhow::{Context, Result, anyhow, bail, ensure};
use nestor_plugin::parse::think_action;
use nestor_plugin::{Expert, Instance, Message, Observation, Respond, Response, Snapshot, Start, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::PythonEnv;
use crate::batch::Batch;
use crate::pool::{Held, Seat};
use crate::reply::{Body, Fields, Score, Seen};
use crate::worker::Fault;

/// In a response without tags, this many characters at the end count as its action.
const TAIL: usize = 30;

/// One instance: its place in a worker, and its episode if it was reset.
pub struct Play {
    seat: Seat,
    /// The worker that the episode is in.
    generation: u64,
    /// Times that the episode was played again, in place of a worker that was lost.
    replays: u32,
    episode: Option<Episode>,
}

/// An episode as far as it was played: enough to play it again in another worker.
struct Episode {
    origin: Origin,
    played: Vec<Played>,
    progress: Progress,
}

/// The start of an episode, or of the part that is known.
enum Origin {
    Reset { request: Value, seen: u64 },
    State(Value),
}

/// A step: the request and a hash of its result.
struct Played {
    request: Value,
    seen: u64,
}

/// The numbers of an episode that the plugin keeps itself.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Progress {
    total: f64,
    over: bool,
}

/// A saved state: the class's and the plugin's.
#[derive(Serialize, Deserialize)]
struct Saved {
    state: Value,
    progress: Progress,
}

impl Play {
    /// An instance without an episode.
    pub fn new(seat: Seat) -> Play {
        Play { seat, generation: 0, replays: 0, episode: None }
    }

    /// Makes a call in the episode under way, which is built again first if its worker was lost.
    fn call(&mut self, world: &PythonEnv, kind: &str, data: Value) -> Result<Body> {
        let mut held = world.pool.hold(&self.seat);
        let generation = held.ready()?;
        if generation != self.generation {
            self.generation = generation;
            if let Some(episode) = &self.episode {
                if let Err(error) = episode.replay(&mut held) {
                    self.episode = None;
                    return Err(error);
                }
                self.replays += 1;
            }
        }
        match held.call(kind, data) {
            Ok(body) => Ok(body),
            Err(fault) => {
                // An exception in the expert leaves the episode as it was; one in a step does not.
                if matches!(fault, Fault::Lost(_)) || matches!(kind, "reset" | "step" | "load") {
                    self.episode = None;
                }
                Err(error_of(fault))
            }
        }
    }

    /// The observation for the host, with the metric `replays`, unless the class has one of that name. `total` is the sum of the episode's rewards.
    fn observation(&self, world: &PythonEnv, seen: Seen, total: f64) -> Result<Observation> {
        let mut seen = observation(world, seen, total)?;
        seen.metrics.entry("replays".into()).or_insert_with(|| self.replays.into());
        Ok(seen)
    }

    /// The one step of a reward function's episode, scored together with others. It needs no environment in the worker, so a worker that
    /// was lost costs nothing.
    fn step_in_batch(&mut self, world: &PythonEnv, batch: &Batch, response: &str) -> Result<Observation> {
        let episode = self.running()?;
        episode.progress.over = true;
        let Origin::Reset { request, .. } = &episode.origin else { bail!("a loaded episode is not scored in a batch") };
        let item = json!({ "split": request["split"], "task": request["task"], "response": response });
        let (Score { reward, mut metrics, mut info }, together) = batch.score(&world.pool, &self.seat, item)?;
        if let Some(least) = world.pool.setup().won_at {
            info.insert("won".into(), (reward >= least).into());
        }
        let action = response.to_string();
        metrics.insert("measured_batch".into(), together as f64);
        Ok(Observation { reward, terminated: true, valid: true, action, info, metrics, ..Observation::default() })
    }

    /// Plays a step of the class.
    fn stepped(&mut self, world: &PythonEnv, request: Value) -> Result<Observation> {
        let Body::Observation(seen) = self.call(world, "step", request.clone())? else { return Err(other("step")) };
        let episode = self.running()?;
        episode.played.push(Played { request, seen: seen.fingerprint() });
        episode.progress.total += seen.reward;
        episode.progress.over = seen.done;
        let total = episode.progress.total;
        self.observation(world, *seen, total)
    }

    /// The episode under way.
    fn running(&mut self) -> Result<&mut Episode> {
        let episode = self.episode.as_mut().context("not reset yet")?;
        ensure!(!episode.progress.over, "the episode is over: reset before the next step");
        Ok(episode)
    }
}

fn error_of(fault: Fault) -> anyhow::Error {
    match fault {
        Fault::Raised(message) => anyhow!(message),
        Fault::Lost(error) => error,
    }
}

impl Episode {
    /// Plays the episode again. The observations must be those of the first time.
    fn replay(&self, held: &mut Held<'_>) -> Result<()> {
        let why = || "the worker was lost, and the episode was played again in a new one";
        let mut again = |kind: &str, request: &Value, seen: Option<u64>, step: usize| -> Result<()> {
            let body = held.call(kind, request.clone()).map_err(error_of)?;
            match (body, seen) {
                (Body::Observation(new), Some(seen)) if new.fingerprint() != seen => {
                    let mut text = new.observation.text;
                    text.truncate(text.char_indices().nth(80).map_or(text.len(), |(end, _)| end));
                    bail!(
                        "step {step} gave another observation, reward or end ({text:?}): the environment must do the \
                         same for the same task, seed and responses"
                    )
                }
                _ => Ok(()),
            }
        };
        match &self.origin {
            Origin::Reset { request, seen } => again("reset", request, Some(*seen), 0).with_context(why)?,
            Origin::State(state) => again("load", &json!({ "state": state }), None, 0).with_context(why)?,
        }
        for (index, step) in self.played.iter().enumerate() {
            again("step", &step.request, Some(step.seen), index + 1).with_context(why)?;
        }
        Ok(())
    }
}

/// The observation for the host. `total` is the sum of the episode's rewards.
fn observation(world: &PythonEnv, seen: Seen, total: f64) -> Result<Observation> {
    let Seen { observation, reward, done, truncated, images } = seen;
    let Fields { text, messages, tools, task, admissible, anchor, action, valid, metrics, metadata: mut info, .. } =
        observation;
    if let (true, Some(least)) = (done, world.pool.setup().won_at) {
        info.entry("won").or_insert_with(|| (total >= least).into());
    }
    let whole = || if messages.is_empty() { text.clone() } else { json!(messages).to_string() };
    let anchor = anchor.unwrap_or_else(whole).into_bytes();
    let terminated = done && !truncated;
    // Nobody answers what comes after the last step, so it need not be a chat that asks for a response.
    let text = messages.last().and_then(|last| last["content"].as_str()).map_or(text, str::to_string);
    let messages = if messages.is_empty() || done { Vec::new() } else { Message::chat(&Value::Array(messages))? };
    let text = messages.last().map_or(text, |last| last.content().to_string());
    let seen =
        Observation { text, messages, tools, images, task, admissible, anchor, action, ..Observation::default() };
    Ok(Observation { reward, terminated, truncated, valid, info, metrics, ..seen })
}

impl Instance for Play {
    type World = PythonEnv;

    fn reset(&mut self, world: &PythonEnv, start: Start<'_>) -> Result<Observation> {
        let Start { split, task, seed } = start;
        (self.episode, self.replays) = (None, 0);
        let request = json!({ "split": split, "task": task, "seed": seed });
        let Body::Observation(seen) = self.call(world, "reset", request.clone())? else { return Err(other("reset")) };
        let origin = Origin::Reset { request, seen: seen.fingerprint() };
        self.episode = Some(Episode { origin, played: Vec::new(), progress: Progress::default() });
        self.observation(world, *seen, 0.0)
    }

    fn step(&mut self, world: &PythonEnv, response: &str) -> Result<Observation> {
        self.running()?;
        if let Some(batch) = &world.batch {
            return self.step_in_batch(world, batch, response);
        }
        let request = match world.class.has("parse") {
            true => json!({ "response": response }),
            false => {
                let action = think_action(response, TAIL);
                json!({ "action": action.text, "valid": action.valid })
            }
        };
        self.stepped(world, request)
    }
}

impl Respond for Play {
    fn respond(&mut self, world: &PythonEnv, response: &Response) -> Result<Observation> {
        self.running()?;
        let calls: Vec<Value> = response.calls()?.into_iter().map(of_call).collect();
        let message = json!({ "role": "assistant", "content": response.message.content(), "tool_calls": calls });
        self.stepped(world, json!({ "message": message, "valid": !response.broken_call }))
    }
}

/// A call as a class gets it: its arguments are a dict.
fn of_call(call: ToolCall) -> Value {
    json!({ "id": call.id, "name": call.name, "arguments": call.arguments })
}

impl Expert for Play {
    fn next_action(&mut self, world: &PythonEnv) -> Result<String> {
        self.running()?;
        match self.call(world, "expert", Value::Null)? {
            Body::Text(action) => Ok(action),
            _ => Err(other("expert")),
        }
    }

    fn response(&self, world: &PythonEnv, action: &str) -> Result<String> {
        if !world.class.has("response") {
            let tagged = format!("<think></think><action>{action}</action>");
            return Ok(if world.class.has("parse") { action.to_string() } else { tagged });
        }
        let mut held = world.pool.hold(&self.seat);
        held.ready()?;
        match held.call("response", json!({ "action": action })).map_err(error_of)? {
            Body::Text(response) => Ok(response),
            _ => Err(other("response")),
        }
    }
}

impl Snapshot for Play {
    fn save(&self, world: &PythonEnv) -> Result<Vec<u8>> {
        let episode = self.episode.as_ref().context("not reset yet")?;
        let mut held = world.pool.hold(&self.seat);
        if held.ready()? != self.generation {
            episode.replay(&mut held)?;
        }
        match held.call("save", Value::Null).map_err(error_of)? {
            Body::State(state) => Ok(serde_json::to_vec(&Saved { state, progress: episode.progress })?),
            _ => Err(other("save")),
        }
    }

    fn load(&mut self, world: &PythonEnv, state: &[u8]) -> Result<()> {
        let Saved { state, progress } =
            serde_json::from_slice(state).context("this is no state of this environment")?;
        self.episode = None;
        match self.call(world, "load", json!({ "state": state }))? {
            Body::Done => {
                self.episode = Some(Episode { origin: Origin::State(state), played: Vec::new(), progress });
                Ok(())
            }
            _ => Err(other("load")),
        }
    }
}

fn other(kind: &str) -> anyhow::Error {
    anyhow!("the worker replied to `{kind}` with something else")
}
