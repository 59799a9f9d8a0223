//! Retrieval from servers over HTTP, in the two forms of the reference's servers.
//!
//! Search-R1's server takes `{"queries": [TEXT, …], "topk": N, "return_scores": true}`, verl-agent's takes one `"query"`. Both
//! answer `{"result": [[{"document": {"id", "contents"}, "score"}, …], …]}`, a list for each query.

mod circuit;
mod collector;
mod config;
mod fault;
pub mod reply;
mod server;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nestor_plugin::shown_address;
use ureq::Agent;

use crate::{Passage, Retriever};
use collector::{Collector, Job, Outcome};
pub use config::{CircuitConfig, Form, HttpConfig, Urls};
use fault::{Fault, Kind};
use server::Server;

/// Python's usual server closes a connection after 5 idle seconds: none is used that it might be closing.
const IDLE: Duration = Duration::from_secs(4);

/// Servers of one corpus.
pub struct Http {
    servers: Vec<Server>,
    /// Requests so far; the next goes to the server after the last one.
    turn: AtomicUsize,
    agent: Agent,
    collector: Collector,
    max_batch: usize,
    tries: u32,
    backoff: Duration,
    asked: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
}

/// Numbers since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpCounts {
    /// Queries that were asked.
    pub asked: u64,
    /// Queries that have an answer.
    pub answered: u64,
    /// Queries that ended with an error.
    pub failed: u64,
    /// Requests to servers.
    pub requests: u64,
}

impl Http {
    /// Checks the settings. Nothing is sent before the first query.
    ///
    /// # Errors
    /// Settings that make no sense.
    pub fn open(config: &HttpConfig) -> Result<Self> {
        let urls = config.check()?;
        let connections = config.connections * urls.len();
        let agent = Agent::config_builder()
            .timeout_global(Some(Duration::from_secs_f64(config.timeout_s)))
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .max_idle_age(IDLE)
            .build()
            .new_agent();
        let server = |url| Server::new(url, config.form, config.max_reply_mib << 20, &config.circuit);
        Ok(Self {
            servers: urls.into_iter().map(server).collect(),
            turn: AtomicUsize::new(0),
            agent,
            collector: Collector::new(connections),
            max_batch: config.max_batch,
            tries: config.tries,
            backoff: Duration::from_secs_f64(config.backoff_s),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        })
    }

    /// Numbers of queries and requests.
    pub fn counts(&self) -> HttpCounts {
        HttpCounts {
            asked: self.asked.load(Ordering::Relaxed),
            answered: self.answered.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            requests: self.servers.iter().map(Server::requests).sum(),
        }
    }

    /// Sends jobs of one number of passages to the next server whose circuit admits it.
    fn send(&self, jobs: &[Job]) -> Vec<Outcome> {
        let queries: Vec<&str> = jobs.iter().map(|job| job.query.as_str()).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let count = self.servers.len();
        let mut in_turn = (0..count).map(|step| &self.servers[turn.wrapping_add(step) % count]);
        let answer = match in_turn.find(|server| server.circuit.admits(now)) {
            Some(server) => server.ask(&self.agent, &queries, jobs[0].topk),
            None => {
                let server = &self.servers[turn % count];
                let (url, cause) = (shown_address(&server.url), server.circuit.describe());
                Err(Fault { url, cause, kind: Kind::Away, queries: jobs.len() })
            }
        };
        match answer {
            Ok(lists) => lists.into_iter().map(Ok).collect(),
            Err(fault) => jobs.iter().map(|_| Err(fault.clone())).collect(),
        }
    }

    /// Asks until an answer comes, the server refuses the query, or the tries are used up. Returns the tries and the last fault.
    fn persist(&self, query: &str, topk: usize) -> Result<Vec<Passage>, (u32, Fault)> {
        let mut job = Job { query: query.to_owned(), topk, alone: false };
        let most = || if self.servers.iter().all(Server::takes_batches) { self.max_batch } else { 1 };
        let mut tries = 0;
        loop {
            let fault = match self.collector.ask(job.clone(), most, |jobs| self.send(jobs)) {
                Ok(passages) => return Ok(passages),
                Err(fault) => fault,
            };
            job.alone |= fault.kind != Kind::Away;
            // A neighbour in the request may be what the server refused.
            if fault.kind == Kind::Refused && fault.queries > 1 {
                continue;
            }
            tries += 1;
            if fault.kind == Kind::Refused || tries >= self.tries {
                return Err((tries, fault));
            }
            thread::sleep(self.backoff * tries);
        }
    }
}

impl Retriever for Http {
    fn retrieve(&self, query: &str, topk: usize) -> Result<Vec<Passage>> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = self.persist(query, topk);
        let count = if answer.is_ok() { &self.answered } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        answer.map_err(|(tries, Fault { url, cause, kind, .. })| {
            let asked = reply::start(query.as_bytes());
            let tries = if tries == 1 { "one try".to_owned() } else { format!("{tries} tries") };
            match kind {
                Kind::Refused => anyhow!(
                    "{url}: the server refuses query {number} ({asked}): {cause}; check the address and the form in retriever \
                     key `http`"
                ),
                Kind::Away | Kind::Broken => anyhow!(
                    "{url}: no answer to query {number} ({asked}) in {tries}; the last: {cause}; check that the server \
                     runs and see its log, or correct retriever key `http`"
                ),
            }
        })
    }
}
