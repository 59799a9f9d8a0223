//! One retrieval server: a request in one of two forms, and its reply.

use std::io::Read;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use nestor_plugin::shown_address;
use serde_json::json;
use ureq::Agent;

use super::circuit::{Circuit, CircuitConfig};
use super::config::Form;
use super::fault::{Fault, Kind};
use super::reply;
use crate::Passage;

/// The most bytes of an error's body that are read for its message.
const MESSAGE: u64 = 400;

/// A server and the memory of how it answered.
pub struct Server {
    pub url: String,
    pub circuit: Circuit,
    configured: Form,
    /// The form that the server last accepted, as [`Form`]'s number.
    accepted: AtomicU8,
    longest_reply: u64,
    requests: AtomicU64,
}

/// An answer with an error.
struct Failure {
    status: Option<u16>,
    cause: String,
    kind: Kind,
}

impl Server {
    pub fn new(url: String, form: Form, longest_reply: u64, circuit: &CircuitConfig) -> Self {
        let (accepted, requests) = (AtomicU8::new(form as u8), AtomicU64::new(0));
        Self { url, circuit: Circuit::new(circuit), configured: form, accepted, longest_reply, requests }
    }

    /// True if the server is known to take several queries in a request.
    pub fn takes_batches(&self) -> bool {
        self.accepted.load(Ordering::Relaxed) == Form::Queries as u8
    }

    /// Number of requests that were made.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Makes one request, or one in each form where the server refuses the first with 422.
    ///
    /// # Errors
    /// A fault that concerns all queries.
    pub fn ask(&self, agent: &Agent, queries: &[&str], topk: usize) -> Result<Vec<Vec<Passage>>, Fault> {
        let single = self.accepted.load(Ordering::Relaxed) == Form::Query as u8;
        let (first, second) = if single { (Form::Query, Form::Queries) } else { (Form::Queries, Form::Query) };
        let mut answer = self.post(agent, first, queries, topk);
        let mut form = first;
        if let Err(Failure { status: Some(422), .. }) = answer
            && self.configured == Form::Auto
            && queries.len() == 1
        {
            answer = self.post(agent, second, queries, topk);
            form = second;
        }
        match answer {
            Ok(lists) => {
                self.accepted.store(form as u8, Ordering::Relaxed);
                self.circuit.succeeded();
                Ok(lists)
            }
            Err(failure) => {
                if failure.kind != Kind::Refused {
                    self.circuit.failed(Instant::now(), &failure.cause);
                }
                let Failure { cause, kind, .. } = failure;
                Err(Fault { url: shown_address(&self.url), cause, kind, queries: queries.len() })
            }
        }
    }

    fn post(&self, agent: &Agent, form: Form, queries: &[&str], topk: usize) -> Result<Vec<Vec<Passage>>, Failure> {
        let body = match (form, queries) {
            (Form::Query, [query]) => json!({ "query": query, "topk": topk, "return_scores": true }),
            _ => json!({ "queries": queries, "topk": topk, "return_scores": true }),
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        let failed = |kind, cause| Failure { status: None, cause, kind };
        let request = agent.post(&self.url).header("Content-Type", "application/json");
        let mut answer = request.send(body.to_string()).map_err(|error| failed(Kind::Away, error.to_string()))?;
        let status = answer.status().as_u16();
        if !(200..300).contains(&status) {
            let mut message = Vec::new();
            // The status says enough if the text breaks off.
            let _ = answer.body_mut().as_reader().take(MESSAGE).read_to_end(&mut message);
            let kind = match status {
                502..=504 => Kind::Away,
                500 => Kind::Broken,
                _ => Kind::Refused,
            };
            let text = if message.is_empty() { String::new() } else { format!(" with {}", reply::start(&message)) };
            return Err(Failure { status: Some(status), cause: format!("HTTP {status}{text}"), kind });
        }
        let longest = self.longest_reply;
        if let Some(length) = answer.body().content_length().filter(|&length| length > longest) {
            return Err(failed(Kind::Broken, too_long(&format!("has {length} bytes"), longest)));
        }
        let body = match answer.body_mut().with_config().limit(longest).read_to_vec() {
            Ok(body) => body,
            Err(ureq::Error::BodyExceedsLimit(_)) => {
                return Err(failed(Kind::Broken, too_long("does not end", longest)));
            }
            Err(ureq::Error::Timeout(_)) => {
                return Err(failed(Kind::Away, "the reply did not end within the timeout".to_owned()));
            }
            Err(error) => return Err(failed(Kind::Broken, format!("the reply broke off: {error}"))),
        };
        reply::parse(&body, queries.len(), topk).map_err(|error| failed(Kind::Broken, format!("{error:#}")))
    }
}

fn too_long(reply: &str, longest: u64) -> String {
    format!("the reply {reply}; the limit `max_reply_mib` is {longest} bytes")
}
