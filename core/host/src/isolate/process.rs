//! A process that runs a plugin, as the trainer has it: calls with a deadline, and its end.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use nestor_plugin::ffi;
use nestor_recipe::input_error;
use nix::sys::signal::Signal;

use super::channel::{Channel, Received};
use super::frame::{Load, Reply, Request, VERSION, decode, encode};
use super::keeper::KILL;
use super::program::{self, Program};
use super::status::{Bounds, Ending};
use crate::call::{Answer, Out, Texts};
use crate::calls::{Call, Function, Name, recorded};
use crate::environment_call::EnvironmentCall;
use crate::estimator_call::EstimatorCall;
use crate::library::{Abilities, Kind};
use crate::loss_call::LossCall;
use crate::supervise::{GRACE, Limits, POLL, Stopped};

/// Time that a process whose connection is closed has to end.
const PATIENCE: Duration = Duration::from_millis(300);
/// Time that a keeper has to end a process with all that it has started.
const LAST: Duration = Duration::from_secs(7);
/// Longest answer but for the numbers of an estimator: texts and images with their lengths, and a state.
const MOST_ANSWER: usize = ffi::MOST_BYTES
    + 16 * ffi::MOST_TEXTS
    + 3 * ffi::MOST_PIXELS as usize
    + 16 * ffi::MOST_IMAGES
    + ffi::MOST_STATE
    + 4096;

/// The component that processes run, and their limits.
#[derive(Debug, Clone)]
pub struct Start {
    pub name: Name,
    pub path: PathBuf,
    pub kind: Kind,
    pub config: String,
    pub bounds: Bounds,
    pub limits: Limits,
}

impl Start {
    fn call(&self, function: Function) -> Call {
        Call { plugin: self.name, function, position: None }
    }
}

/// A process of one plugin. Dropped, it is killed.
pub struct Process {
    channel: Mutex<Channel>,
    owner: Owner,
    bounds: Bounds,
    limits: Limits,
    /// It has ended, or is about to.
    over: AtomicBool,
}

/// The parent of a process, which can end it and ask how it ended.
enum Owner {
    Trainer(Mutex<Program>),
    Process { parent: Arc<Process>, pid: i32 },
}

impl Process {
    /// Starts `nestor-host` with a plugin file.
    pub fn start(start: &Start) -> Result<(Self, Abilities)> {
        let (ours, theirs) = Channel::pair()?;
        ours.wait_at_most(POLL)?;
        let (socket, shared) = theirs.into_parts();
        let program = program::start(start.name.text(), socket)?;
        let Start { name, path, kind, bounds, limits, .. } = start;
        let load = Load {
            version: VERSION.into(),
            path: path.clone(),
            id: name.text().into(),
            kind: *kind,
            memory: bounds.memory,
            cpu: bounds.cpu,
        };
        let owner = Owner::Trainer(Mutex::new(program));
        let (channel, limits) = (Mutex::new(ours), limits.clone());
        let process = Self { channel, owner, bounds: *bounds, limits, over: AtomicBool::new(false) };
        let call = start.call(Function::Entry);
        match recorded(&call, || process.exchange(&call, &Request::Load(load), &[shared.as_raw_fd()], 0))? {
            Reply::Loaded(abilities) => Ok((process, abilities)),
            Reply::Refused(message) => Err(input_error!("{message}")),
            _ => Err(process.foreign()),
        }
    }

    /// Opens the component. Returns the texts that it put.
    pub fn open(&self, start: &Start) -> Result<Texts> {
        let request = Request::Open(start.config.clone());
        let (texts, out) = self.call(&start.call(Function::Open), &request, 0)?;
        out.handle().map(|_| texts)
    }

    /// A copy of a process with an open component; none if it cannot be copied.
    pub fn fork(self: &Arc<Self>, name: Name) -> Result<Option<Self>> {
        let (ours, theirs) = Channel::pair()?;
        ours.wait_at_most(POLL)?;
        let call = Call { plugin: name, function: Function::Spawn, position: None };
        let descriptors = [theirs.socket().as_raw_fd(), theirs.shared().as_raw_fd()];
        let pid = match self.exchange(&call, &Request::Fork, &descriptors, 0)? {
            Reply::Forked(pid) => pid,
            _ => return Err(self.foreign()),
        };
        Ok(pid.map(|pid| Self {
            channel: Mutex::new(ours),
            owner: Owner::Process { parent: self.clone(), pid },
            bounds: self.bounds,
            limits: self.limits.clone(),
            over: AtomicBool::new(false),
        }))
    }

    /// Makes a call of an environment.
    pub fn environment(&self, call: Call, request: EnvironmentCall) -> Result<(Texts, Out)> {
        self.call(&call, &Request::Environment(request), 0)
    }

    /// Makes a call of an estimator.
    pub fn estimator(&self, call: Call, request: EstimatorCall) -> Result<(Texts, Out)> {
        let numbers = request.numbers();
        self.call(&call, &Request::Estimator(Box::new(request)), numbers)
    }

    /// Makes a call of a loss.
    pub fn loss(&self, call: Call, request: LossCall) -> Result<(Texts, Out)> {
        let numbers = request.numbers();
        self.call(&call, &Request::Loss(Box::new(request)), numbers)
    }

    /// True once no call can be made any more.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Makes a request that runs the plugin's code.
    fn call(&self, call: &Call, request: &Request, numbers: usize) -> Result<(Texts, Out)> {
        match recorded(call, || self.exchange(call, request, &[], numbers))? {
            Reply::Answer(answer) => Answer::checked(answer).result(),
            _ => Err(self.foreign()),
        }
    }

    /// Makes a request and waits for the reply. A process that dies, takes too long or answers nonsense is over.
    fn exchange(&self, call: &Call, request: &Request, descriptors: &[i32], numbers: usize) -> Result<Reply> {
        if self.is_over() {
            bail!("`{}` cannot be called: the plugin's process has ended", call.function.name());
        }
        let body = encode(request)?;
        let most = (MOST_ANSWER + numbers.saturating_mul(16)) as u64;
        let (channel, begin) = (lock(&self.channel), Instant::now());
        let (mut ending, mut stopped) = (Ending::default(), None);
        if channel.send(&body, descriptors).is_err() {
            return Err(self.died(call, ending));
        }
        loop {
            match channel.receive(most) {
                Ok(Received::Body(body)) => return decode(&body).map_err(|error| self.nonsense(call, &error)),
                Ok(Received::Dying(data)) => ending.data = Some(data),
                Ok(Received::Closed) => return Err(self.died(call, ending)),
                Ok(Received::Nothing) => {}
                Err(error) => return Err(self.nonsense(call, &error)),
            }
            if self.limits.stopped() && stopped.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                self.end(Duration::ZERO);
                return Err(Stopped.into());
            }
            if begin.elapsed() >= self.limits.timeout {
                self.end(Duration::ZERO);
                return Err(self.limits.exceeded(call));
            }
        }
    }

    /// The error of a call whose process died.
    fn died(&self, call: &Call, ending: Ending) -> anyhow::Error {
        let status = self.end(PATIENCE);
        let words = Ending { status, ..ending }.words(&self.bounds);
        anyhow!("`{}` {words}", call.function.name())
    }

    fn nonsense(&self, call: &Call, error: &anyhow::Error) -> anyhow::Error {
        self.end(Duration::ZERO);
        anyhow!("`{}` wrote to nestor's connection, or damaged its memory: {error:#}", call.function.name())
    }

    fn foreign(&self) -> anyhow::Error {
        self.end(Duration::ZERO);
        anyhow!("the plugin's process sent the answer of another request")
    }

    /// Ends the process with all that its plugin started, if it does not end within this time. Returns how it ended by
    /// itself.
    fn end(&self, patience: Duration) -> Option<i32> {
        if self.over.swap(true, Ordering::Relaxed) {
            return None;
        }
        match &self.owner {
            Owner::Trainer(program) => end_program(&mut lock(program), patience),
            Owner::Process { parent, pid } => {
                let call = Call { plugin: Name::of("host"), function: Function::Close, position: None };
                let request = Request::End { pid: *pid, patience: patience.as_millis() as u64 };
                match parent.exchange(&call, &request, &[], 0) {
                    Ok(Reply::Ended(status)) => status,
                    // The parent is dead, and the kernel has killed its children.
                    _ => Some(Signal::SIGKILL as i32),
                }
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

fn end_program(program: &mut Program, patience: Duration) -> Option<i32> {
    if let Some(status) = program.child.wait(patience) {
        return Some(status.into_raw());
    }
    if program.lifeline.write_all(KILL).is_ok() && program.child.wait(LAST).is_some() {
        return None;
    }
    // The keeper was stopped.
    let _ = program.child.kill();
    None
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
