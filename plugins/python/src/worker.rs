//! A worker process: it plays environments, and answers one request at a time. The process that is started here is its
//! keeper (`worker.py`), which ends with it and with all that it has started, also where the trainer was killed.

use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nestor_child::Child;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::config::Setup;
use crate::frame::{Frames, MOST_BYTES, framed, reply};
use crate::reply::{Body, Description};

const SOURCE: &str = include_str!("worker.py");
/// File of the worker's own frames in a traceback.
const WORKER: &[u8] = b"\"<string>\"";
/// Time for the interpreter's start and the class's import, on top of one call's.
const START: Duration = Duration::from_secs(120);
/// Time that a worker has to say where it hangs.
const DUMP: Duration = Duration::from_millis(500);
/// Time that a worker has to end by itself.
const FAREWELL: Duration = Duration::from_secs(2);
/// Time that a keeper has to end a worker with all that it has started.
const END: Duration = Duration::from_secs(7);
/// Time after which a worker that closed its connection is taken to run on.
const PATIENCE: Duration = Duration::from_secs(1);
/// The variable that marks what a worker starts, for the case that its keeper was killed.
const MARK: &str = "NESTOR_WORKER";
/// Asks a keeper to kill its worker.
const KILL: &[u8] = b"k";

/// The reason why a request has no answer.
#[derive(Debug)]
pub enum Fault {
    /// The environment raised an exception; the worker is as it was.
    Raised(String),
    /// The worker is gone, or cannot be used any more.
    Lost(anyhow::Error),
}

/// A process and its socket.
pub struct Worker {
    child: Child,
    link: UnixStream,
    /// The keeper's connection.
    lifeline: UnixStream,
    mark: String,
    frames: Frames,
    timeout: Duration,
    requests: u64,
}

impl Worker {
    /// Starts a process and opens the class in it.
    pub fn start(setup: &Setup) -> Result<(Worker, Description)> {
        let (link, theirs) = UnixStream::pair().context("cannot make a socket for a worker")?;
        let (lifeline, keepers) = UnixStream::pair().context("cannot make a socket for a worker")?;
        link.set_write_timeout(Some(setup.timeout)).context("cannot limit a worker's time")?;
        let mark = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let mut command = Command::new(&setup.python);
        command.args(["-u", "-c", SOURCE]).env(MARK, &mark);
        command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(keepers));
        // A Ctrl-C in the terminal is the trainer's.
        let child = Child::start_group(&mut command).with_context(|| {
            format!("config key `python`: {} cannot be started; name an interpreter or a venv", setup.python.display())
        })?;
        drop(command); // it holds the other ends of the sockets
        let (frames, timeout) = (Frames::default(), setup.timeout + START);
        let mut worker = Worker { child, link, lifeline, mark, frames, timeout, requests: 0 };
        let described = match worker.call(0, "open", setup.open.clone()) {
            Ok(Body::Description(described)) => described,
            Ok(other) => bail!("the worker opened with {other:?}"),
            Err(Fault::Raised(message)) => bail!("`{}`: {message}", setup.class),
            Err(Fault::Lost(error)) => return Err(error.context(format!("`{}`", setup.class))),
        };
        worker.timeout = setup.timeout;
        Ok((worker, described))
    }

    /// Returns true if the process still runs and can be asked. A worker that was killed has closed its connection some milliseconds before its
    /// keeper ends.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.poll(), Ok(None)) && !self.is_closed()
    }

    /// True if nobody holds the other end of the connection.
    fn is_closed(&self) -> bool {
        let mut link = [PollFd::new(self.link.as_fd(), PollFlags::empty())]; // the end of a connection is reported unasked
        poll(&mut link, PollTimeout::ZERO).is_ok()
            && link[0].revents().is_some_and(|found| found.contains(PollFlags::POLLHUP))
    }

    /// The end of a worker that does not run, such as `was killed by SIGKILL`. One that has only closed its connection is killed.
    pub fn end(&mut self) -> String {
        match self.wait(PATIENCE) {
            Some(status) => ended(status),
            None => {
                self.kill();
                "closed its connection to nestor".into()
            }
        }
    }

    /// Sends a request for an environment and waits for the reply.
    pub fn call(&mut self, env: u64, kind: &str, data: Value) -> Result<Body, Fault> {
        self.requests += 1;
        let id = self.requests;
        let request = json!({ "id": id, "env": env, "type": kind, "data": data });
        match self.exchange(&request, id).map_err(|error| self.lost(kind, error))? {
            Body::Error(message) => Err(Fault::Raised(message)),
            body => Ok(body),
        }
    }

    fn exchange(&mut self, request: &Value, id: u64) -> Result<Body> {
        let end = Instant::now() + self.timeout;
        self.link.write_all(&framed(&serde_json::to_vec(request)?)?)?;
        let mut piece = [0; 1 << 16];
        loop {
            if let Some(body) = self.frames.take()? {
                return reply(&body, id);
            }
            let left = end.saturating_duration_since(Instant::now());
            self.link.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.link.read(&mut piece) {
                Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.frames.push(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the process after a failed exchange, and says why it failed.
    fn lost(&mut self, kind: &str, error: anyhow::Error) -> Fault {
        let cause = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        Fault::Lost(match cause {
            Some(ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let place = self.place();
                self.kill();
                let seconds = self.timeout.as_secs_f64();
                anyhow!(
                    "`{kind}` did not return within {seconds} s (config key `timeout_s`){place}; its worker was killed"
                )
            }
            Some(_) => match self.wait(PATIENCE) {
                Some(status) => anyhow!("the worker {} during `{kind}`", ended(status)),
                None => {
                    self.kill();
                    anyhow!("the worker closed its connection to nestor during `{kind}`, and was killed")
                }
            },
            None => {
                self.kill();
                error
            }
        })
    }

    /// Asks a worker that hangs for the place in the user's code where it does.
    fn place(&mut self) -> String {
        self.child.signal(Signal::SIGVTALRM);
        let end = Instant::now() + DUMP;
        let mut text = self.frames.rest().to_vec();
        let mut piece = [0; 4096];
        // The worker's own frames come last.
        while !text.windows(WORKER.len()).any(|part| part == WORKER) && text.len() < MOST_BYTES {
            let left = end.saturating_duration_since(Instant::now());
            let waits = !left.is_zero() && self.link.set_read_timeout(Some(left)).is_ok();
            match waits.then(|| self.link.read(&mut piece)) {
                Some(Ok(count)) if count > 0 => text.extend_from_slice(&piece[..count]),
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(&text);
        let frames = text.lines().filter_map(|line| line.trim_start().strip_prefix("File "));
        let places: Vec<&str> = frames.filter(|frame| !frame.starts_with("\"<")).take(2).collect();
        if places.is_empty() { String::new() } else { format!("; it was at {}", places.join(", called from ")) }
    }

    /// Waits for the process to end by itself.
    fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        let status = self.child.wait(time)?;
        if status.signal() == Some(Signal::SIGKILL as i32) {
            self.end_marked(); // perhaps that of the keeper itself
        }
        Some(status)
    }

    /// Kills what has the worker's mark in its environment.
    fn end_marked(&self) {
        let mark = format!("{MARK}={}", self.mark);
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let variables = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if variables.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes()) {
                // It may have ended just now.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    /// Ends the process and all that it started.
    pub fn kill(&mut self) {
        if self.wait(Duration::ZERO).is_some() {
            return; // its number may be another process's already
        }
        if self.lifeline.write_all(KILL).is_ok() && self.wait(END).is_some() {
            return;
        }
        // It is no keeper, or was stopped.
        let _ = self.child.kill();
        self.end_marked();
    }

    /// Hangs up, on which a worker ends by itself.
    pub fn hang_up(&self) {
        let _ = self.link.shutdown(Shutdown::Both);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.hang_up();
        if self.wait(FAREWELL).is_none() {
            self.kill();
        }
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (_, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("was killed by {signal}"),
            Err(_) => format!("was killed by signal {number}"),
        },
        _ => "ended".into(),
    }
}
