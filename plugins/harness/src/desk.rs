//! The desk that requests arrive at: it knows the tokens of the episodes under way, and hands each request to its episode.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use nestor_chat::{Asked, Call, Refusal, Server, ServerOptions};

use crate::config::Config;
use crate::worker::Event;

/// Longest body of a request: more than that is no observation (`NESTOR_MOST_BYTES`).
const LONGEST_BODY: usize = 4 << 20;
/// Groups whose starts are kept to compare others with.
const MOST_STARTS: usize = 4096;

/// The episodes under way by their tokens.
type Episodes = Arc<Mutex<HashMap<String, SyncSender<Event>>>>;

/// The endpoint and what all episodes share.
pub struct Desk {
    server: Server,
    episodes: Episodes,
    /// Digest of a group's first request, by split, task and seed.
    starts: Mutex<HashMap<(String, u64, u64), [u8; 32]>>,
}

impl Desk {
    /// Starts the endpoint on a free port of the loopback address.
    pub fn open(config: &Config) -> Result<Self> {
        let (episodes, model) = (Episodes::default(), config.model.clone());
        let known = episodes.clone();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start(&ServerOptions { address: loopback, longest_body: LONGEST_BODY }, move |call| {
            route(&known, &model, call);
        })?;
        Ok(Self { server, episodes, starts: Mutex::default() })
    }

    pub fn base_url(&self) -> String {
        self.server.base_url()
    }

    /// Begins an episode: requests with the token go to `events` from now on.
    pub fn admit(&self, token: &str, events: SyncSender<Event>) {
        lock(&self.episodes).insert(token.to_string(), events);
    }

    /// Ends an episode: requests with the token are refused from now on.
    pub fn dismiss(&self, token: &str) {
        lock(&self.episodes).remove(token);
    }

    /// True if the first request of an episode is that of its group: of the same split, task and seed.
    pub fn starts_alike(&self, start: (String, u64, u64), digest: [u8; 32]) -> bool {
        let mut starts = lock(&self.starts);
        if starts.len() >= MOST_STARTS {
            starts.clear();
        }
        *starts.entry(start).or_insert(digest) == digest
    }
}

/// Hands a request to its episode. The server's thread runs it, so it never waits.
fn route(episodes: &Mutex<HashMap<String, SyncSender<Event>>>, model: &str, call: Call) {
    if call.asked == Asked::Models {
        return call.reply.models(&[model.to_string()]);
    }
    let found = call.token.as_ref().and_then(|token| lock(episodes).get(token).cloned());
    let Some(events) = found else {
        let message = match call.token {
            Some(_) => "the token is of no episode under way: the episode is over, or the API key is another one",
            None => "the request has no token; send the episode's as `Authorization: Bearer TOKEN` (OPENAI_API_KEY)",
        };
        return call.reply.refuse(Refusal::new(401, message));
    };
    if let Err(error) = events.try_send(Event::Call(Box::new(call)))
        && let Event::Call(call) = event_of(error)
    {
        call.reply.refuse(Refusal::new(429, "the episode has too many requests that wait"));
    }
}

fn event_of(error: std::sync::mpsc::TrySendError<Event>) -> Event {
    match error {
        std::sync::mpsc::TrySendError::Full(event) | std::sync::mpsc::TrySendError::Disconnected(event) => event,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
