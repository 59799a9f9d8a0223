//! A worker: the program that plays episodes, and what it says.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nestor_chat::Call;
use nestor_child::{Child, words};
use serde_json::Value;

use crate::config::Config;

/// Things that a worker may say before it is read. Its output waits beyond them, and its requests are refused.
const MOST_EVENTS: usize = 256;
/// Longest line of output that is read whole.
const LONGEST_LINE: u64 = 1 << 20;
/// Lines of output that an error shows.
const SHOWN: usize = 12;
/// Time between the end of a worker's output and its own end.
const LAST: Duration = Duration::from_secs(5);

/// Something that a worker did.
#[derive(Debug)]
pub enum Event {
    /// A request to the endpoint.
    Call(Box<Call>),
    /// A line of standard output.
    Line(String),
    /// A line of standard error.
    Complaint(String),
    /// Its standard output ended.
    Closed,
}

/// A running worker.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    /// Things that it did while nobody waited.
    backlog: VecDeque<Event>,
    /// Its last lines of output that are no outcome.
    said: VecDeque<String>,
}

impl Worker {
    /// Starts a worker with further variables of its environment.
    pub fn start(config: &Config, variables: &[(&str, String)]) -> Result<Self> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&config.command).current_dir(&config.folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A proxy would be asked for the loopback address.
        command
            .env("NO_PROXY", "127.0.0.1,localhost")
            .env("no_proxy", "127.0.0.1,localhost")
            .env("PYTHONUNBUFFERED", "1");
        command.envs(&config.variables).envs(variables.iter().map(|(name, value)| (name, value)));
        let starting = || format!("starting a worker by `{}`", config.command);
        let mut child = Child::start_group(&mut command).with_context(starting)?;
        let (sender, events) = sync_channel(MOST_EVENTS);
        let input = child.stdin.take();
        if let Some(output) = child.stdout.take() {
            let sender = sender.clone();
            listen("worker output", move || {
                read_lines(output, |line| sender.send(Event::Line(line)).is_ok());
                let _ = sender.send(Event::Closed);
            })?;
        }
        if let Some(errors) = child.stderr.take() {
            let sender = sender.clone();
            listen("worker errors", move || read_lines(errors, |line| sender.send(Event::Complaint(line)).is_ok()))?;
        }
        Ok(Self { child, input, events, sender, backlog: VecDeque::new(), said: VecDeque::new() })
    }

    /// The channel of its requests.
    pub fn sender(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Writes a line to its standard input, and closes that behind the `last` one.
    pub fn tell(&mut self, line: &Value, last: bool) -> Result<()> {
        let input = self.input.as_mut().context("the worker's standard input is closed")?;
        let written = writeln!(input, "{line}").and_then(|()| input.flush());
        if last {
            self.input = None;
        }
        match written {
            Ok(()) => Ok(()),
            // It need not read its input.
            Err(_) if last => Ok(()),
            Err(error) => Err(anyhow!("the worker does not read its standard input ({error}){}", self.shown())),
        }
    }

    /// The next thing that it does before a deadline; none where it does nothing.
    pub fn next(&mut self, deadline: Instant) -> Option<Event> {
        loop {
            if let Some(event) = self.backlog.pop_front() {
                return Some(event);
            }
            let event = match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            };
            match event {
                Event::Complaint(line) => self.note(line),
                event => return Some(event),
            }
        }
    }

    /// The requests that wait already.
    pub fn waiting_calls(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Call(call) => calls.push(*call),
                Event::Complaint(line) => self.note(line),
                event => self.backlog.push_back(event),
            }
        }
        calls
    }

    /// Keeps a line of output for the next error.
    pub fn note(&mut self, line: String) {
        if self.said.len() == SHOWN {
            self.said.pop_front();
        }
        self.said.push_back(line);
    }

    /// True while it runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.poll(), Ok(None))
    }

    /// Its end in words, after its output ended.
    pub fn end(&mut self) -> String {
        let status = self.child.wait(LAST);
        self.waiting_calls();
        while let Some(event) = self.backlog.pop_front() {
            if let Event::Line(line) = event {
                self.note(line);
            }
        }
        status.map_or_else(|| "closed its standard output".into(), words)
    }

    /// True if it ended by itself with code 0.
    pub fn succeeded(&mut self) -> bool {
        self.child.wait(LAST).is_some_and(|status| status.success())
    }

    /// Its last lines of output, for an error.
    pub fn shown(&self) -> String {
        if self.said.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = self.said.iter().map(String::as_str).collect();
        format!("; its last output:\n  {}", lines.join("\n  "))
    }
}

fn listen(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map(drop)
        .context("starting a thread for a worker's output")
}

/// Reads lines until the end, or until they are no longer wanted. A line over the limit comes in pieces.
fn read_lines(output: impl Read, mut wanted: impl FnMut(String) -> bool) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = Vec::new();
        match output.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_string();
        if !line.is_empty() && !wanted(line) {
            return;
        }
    }
}
