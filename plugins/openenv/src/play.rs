//! Plays episodes. A session that is lost is opened again, and brought to where it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nestor_plugin::{Expert, Instance, Observation, Start};
use serde_json::{Map, json};

use crate::OpenEnv;
use crate::config::Source;
use crate::connection::{Connection, Fault};
use crate::view::Seen;
use crate::wire::{self, Reply};

/// Waits between attempts to reach the server: the first and the longest.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Time from an answer in which one too many arrives, before a session is used for another episode.
const SURPLUS: Duration = Duration::from_millis(20);

/// One of the sessions that this process may have open.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(open: &Arc<AtomicUsize>, most: Option<usize>) -> Result<Self, Fault> {
        let most = most.unwrap_or(usize::MAX);
        let more = |open: usize| (open < most).then_some(open + 1);
        open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(|_| Self(Arc::clone(open))).map_err(|_| {
            Fault::Lost(anyhow!(
                "all {most} sessions of config key `sessions` are taken: raise it, or lower rollout.slots"
            ))
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session of the server. The connection is declared first, so that it closes before the permit is free.
struct Session {
    connection: Connection,
    _permit: Permit,
}

impl Session {
    /// Sends a message. A refusal that ends the session is a fault.
    fn ask(&mut self, message: &str, timeout: Duration) -> Result<Reply, Fault> {
        let text = self.connection.ask(message, timeout)?;
        match wire::read(&text).map_err(Fault::Failed)? {
            Reply::Refusal(refusal) if refusal.ends_session() => Err(Fault::Lost(refusal.error())),
            Reply::Refusal(refusal) if refusal.code == "FACTORY_ERROR" => Err(Fault::Failed(refusal.error())),
            reply => Ok(reply),
        }
    }
}

/// A message of the episode under way, and what was seen then.
struct Played {
    message: String,
    seen: Seen,
}

/// One instance: a session, and the episode under way.
#[derive(Default)]
pub struct Play {
    session: Option<Session>,
    /// The reset and the steps of the episode; empty before the first reset.
    played: Vec<Played>,
    /// Responses so far, also those that were not sent.
    responses: u32,
    /// Times that the episode's session was opened anew.
    reconnects: u32,
    over: bool,
}

impl Play {
    /// Sends a message in the session. Opens a session where there is none, and begins no further attempt once
    /// `connect_timeout_s` has passed since the first failure.
    fn ask(&mut self, world: &OpenEnv, message: &str) -> Result<Reply> {
        let limit = world.config.connect_timeout();
        let (mut until, mut wait) = (None, WAITS.0);
        loop {
            let fault = match self.try_ask(world, message) {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            // Its answer may still come, and would be taken for the next one's.
            self.session = None;
            let error = match fault {
                Fault::Failed(error) => return Err(error),
                Fault::Lost(error) => error,
            };
            let end = *until.get_or_insert_with(|| Instant::now() + limit);
            if Instant::now() + wait >= end {
                let limit = limit.as_secs_f64();
                return Err(error.context(format!(
                    "no session with {} within {limit} s (config key `connect_timeout_s`)",
                    world.address.socket
                )));
            }
            std::thread::sleep(wait);
            wait = (2 * wait).min(WAITS.1);
        }
    }

    fn try_ask(&mut self, world: &OpenEnv, message: &str) -> Result<Reply, Fault> {
        let timeout = world.config.timeout();
        let session = match &mut self.session {
            Some(session) => {
                if self.played.is_empty() {
                    session.connection.refuse_unasked(SURPLUS.saturating_sub(session.connection.quiet()))?;
                }
                session
            }
            none => {
                let permit = Permit::take(&world.open_sessions, world.config.sessions)?;
                let connection =
                    Connection::open(&world.address, world.config.connect_timeout(), world.config.longest_message())?;
                let mut session = Session { connection, _permit: permit };
                for (step, played) in self.played.iter().enumerate() {
                    let reply = session.ask(&played.message, timeout)?;
                    compare(world, step, &reply, &played.seen).map_err(Fault::Failed)?;
                }
                self.reconnects += u32::from(!self.played.is_empty());
                none.insert(session)
            }
        };
        session.ask(message, timeout)
    }

    /// Adds what an instance knows to what the server sent.
    fn complete(&mut self, world: &OpenEnv, mut seen: Observation) -> Observation {
        if seen.task.is_empty() {
            seen.task = self.played.first().map(|first| first.seen.observation.task.clone()).unwrap_or_default();
        }
        seen.truncated = !seen.terminated && world.config.max_steps.is_some_and(|most| self.responses >= most);
        seen.metrics.insert("reconnects".into(), self.reconnects.into());
        self.over = seen.terminated || seen.truncated;
        seen
    }

    fn last(&self) -> Result<&Seen> {
        let last = self.played.last().context("not reset yet")?;
        ensure!(!self.over, "the episode is over: reset before the next step");
        Ok(&last.seen)
    }
}

/// Checks an answer of a new session against that of the lost one.
fn compare(world: &OpenEnv, step: usize, reply: &Reply, before: &Seen) -> Result<()> {
    let place = || match step {
        0 => "the reset".to_string(),
        step => format!("step {step}"),
    };
    let answer = match reply {
        Reply::Observation(answer) => answer,
        Reply::Refusal(refusal) => {
            return Err(refusal.error()).with_context(|| format!("the session was lost, and {} failed again", place()));
        }
    };
    let now = if step == 0 { world.view.first(answer)? } else { world.view.next(answer)? };
    if now.equals(before) {
        return Ok(());
    }
    let shown = |seen: &Seen| {
        let Observation { text, reward, terminated, .. } = &seen.observation;
        let images = seen.digest.get(..8).map(|digest| format!(", images {digest}")).unwrap_or_default();
        format!("{:?}{images}, reward {reward}, done {terminated}", wire::start(text))
    };
    bail!(
        "the session was lost, and a new one answered {} with another observation: {}; before: {}; only a server that \
         repeats an episode for the same reset can continue it, so send it a seed by config key `reset`",
        place(),
        shown(&now),
        shown(before)
    )
}

impl Instance for Play {
    type World = OpenEnv;

    fn reset(&mut self, world: &OpenEnv, start: Start<'_>) -> Result<Observation> {
        let (count, first) = world.config.split(start.split)?;
        ensure!(start.task < count, "there is no task {}: split {} has {count}", start.task, start.split);
        let mut fields = Map::new();
        for (name, source) in &world.config.reset {
            let value = match source {
                Source::Task => json!(first + start.task),
                // Python's generators take at least 32 bits.
                Source::Seed => json!(start.seed & u64::from(u32::MAX)),
                Source::Split => json!(start.split),
            };
            fields.insert(name.clone(), value);
        }
        fields.extend(world.config.reset_kwargs.clone());
        let session = self.session.take();
        *self = Self { session, ..Self::default() };
        let message = wire::reset(fields);
        let answer = match self.ask(world, &message)? {
            Reply::Observation(answer) => answer,
            Reply::Refusal(refusal) => return Err(refusal.error()),
        };
        let seen = world.view.first(&answer)?;
        let observation = seen.observation.clone();
        self.played.push(Played { message, seen });
        Ok(self.complete(world, observation))
    }

    fn step(&mut self, world: &OpenEnv, response: &str) -> Result<Observation> {
        let last = self.last()?;
        let parsed = world.actions.parse(response);
        // The state that a response leaves unchanged which the server cannot take.
        let unchanged = Observation { reward: 0.0, valid: false, ..last.observation.clone() };
        let seen = match parsed.fields.map(wire::step) {
            None => unchanged,
            Some(message) => match self.ask(world, &message)? {
                Reply::Observation(answer) => {
                    let seen = world.view.next(&answer)?;
                    let observation = Observation { valid: parsed.valid, ..seen.observation.clone() };
                    // A new session's answers are compared by the digest; all images of an episode could fill the memory.
                    self.played.iter_mut().for_each(|before| before.seen.observation.images.clear());
                    self.played.push(Played { message, seen });
                    observation
                }
                Reply::Refusal(refusal) if refusal.is_about(world.actions.field()) => unchanged,
                Reply::Refusal(refusal) => return Err(refusal.error()),
            },
        };
        self.responses += 1;
        let seen = Observation { action: parsed.text, ..seen };
        Ok(self.complete(world, seen))
    }
}

impl Expert for Play {
    fn next_action(&mut self, _world: &OpenEnv) -> Result<String> {
        let expert = self.last()?.expert.clone();
        expert.context("config key `expert`: the observation has no such value; name another path")
    }

    fn response(&self, world: &OpenEnv, action: &str) -> Result<String> {
        Ok(world.actions.response(action))
    }
}
