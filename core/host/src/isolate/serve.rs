//! The program `nestor-host`: answers requests of the trainer until its connection is closed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{ForkResult, Pid, fork, getpid};

use super::channel::{Channel, Received, receive};
use super::frame::{INLINE, Load, Packet, Reply, Request, VERSION, decode, encode};
use super::guard;
use super::keeper::{below, ended};
use super::leave_parent::leave_parent;
use super::status::LOST;
use crate::call::{Answer, Handle, open};
use crate::environment_call::EnvironmentCall;
use crate::leave;
use crate::library::{self, Abilities, Functions};

/// Time that the copies have to close their instances once the trainer is gone.
const COPIES: Duration = Duration::from_secs(1);

/// Serves the socket that is this process's standard input, and does not return but for an error.
pub fn serve() -> Result<()> {
    let socket = leave_parent()?;
    let mut buffer = vec![0; INLINE + 1];
    let (length, descriptors) = receive(std::os::fd::AsFd::as_fd(&socket), &mut buffer)?;
    let [shared] =
        <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| anyhow!("nestor-host is started by nestor alone"))?;
    let channel = Channel::of(socket, shared);
    let Packet::Body(body) = Packet::read(&buffer[..length])? else { bail!("the first message is none") };
    let Request::Load(load) = decode(body)? else { bail!("the first request is not to load a plugin") };
    guard::report_faults(&channel.socket());
    let (functions, abilities) = match prepare(&load) {
        Ok(loaded) => loaded,
        Err(error) => {
            channel.send(&encode(&Reply::Refused(format!("{error:#}")))?, &[])?;
            leave::now(0)
        }
    };
    channel.send(&encode(&Reply::Loaded(abilities))?, &[])?;
    Host { channel, functions, cpu: load.cpu, shared: None, own: None, is_copy: false, copies: Vec::new() }.serve()
}

/// Sets the limits and loads the component.
fn prepare(load: &Load) -> Result<(Functions, Abilities)> {
    ensure!(load.version == VERSION, "nestor-host is of another version than nestor; build both together");
    if let Some(bytes) = load.memory {
        guard::limit_memory(bytes)?;
    }
    let mut fitting = library::load(&load.path)?.into_iter().filter(|c| c.kind() == load.kind && c.id == load.id);
    let changed = || format!("plugin file {} changed while it was read", load.path.display());
    let component = fitting.next().with_context(changed)?;
    Ok((component.functions, component.abilities()))
}

/// A process with a loaded component.
struct Host {
    channel: Channel,
    functions: Functions,
    cpu: Option<u64>,
    /// The handle that `open` gave: the shared part of an environment, an estimator, or a loss.
    shared: Option<Handle>,
    /// An instance of the environment.
    own: Option<Handle>,
    /// Another process has opened the shared part.
    is_copy: bool,
    /// Process ids of the copies.
    copies: Vec<i32>,
}

impl Host {
    /// Answers requests. Ends the process when the trainer has gone.
    fn serve(mut self) -> ! {
        loop {
            let (body, descriptors) = match self.channel.receive_with_descriptors() {
                Ok((Received::Body(body), descriptors)) => (body, descriptors),
                Ok((Received::Nothing, _)) => continue,
                Ok(_) => {
                    self.close();
                    leave::now(0)
                }
                Err(_) => leave::now(LOST),
            };
            let reply = decode(&body).and_then(|request| self.reply(request, descriptors));
            // Shows the text in the buffers of C now, so that no copy shows it again.
            // SAFETY: null names all of them.
            unsafe { libc::fflush(std::ptr::null_mut()) };
            let sent = match reply {
                Ok(Some(reply)) => encode(&reply).is_ok_and(|body| self.channel.send(&body, &[]).is_ok()),
                Ok(None) => true,
                Err(error) => {
                    eprintln!("nestor-host: {error:#}");
                    leave::now(1)
                }
            };
            if !sent {
                leave::now(LOST);
            }
        }
    }

    /// Closes what is open once the trainer has gone: the copies close theirs first. The keeper ends a plugin that hangs here.
    fn close(&mut self) {
        let begin = Instant::now();
        for &copy in &self.copies {
            while ended(libc::P_PID, copy as libc::id_t, 0) == Ok(None) && begin.elapsed() < COPIES {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let is_environment = matches!(self.functions, Functions::Environment(_));
        for (open, call) in
            [(self.own, EnvironmentCall::Close), (self.shared.filter(|_| !self.is_copy), EnvironmentCall::CloseWorld)]
        {
            if open.is_some() && is_environment {
                // Nobody waits for a fault.
                let _ = self.environment(&call);
            }
        }
    }

    /// The reply to a request; none in the copy that a fork makes.
    fn reply(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Result<Option<Reply>> {
        if let Some(seconds) = self.cpu {
            guard::limit_cpu(seconds)?;
        }
        let answer = match request {
            Request::Load(_) => bail!("a second plugin to load"),
            Request::Fork => return self.fork(descriptors),
            Request::End { pid, patience } => {
                self.copies.retain(|&copy| copy != pid);
                return Ok(Some(Reply::Ended(end(pid, Duration::from_millis(patience)))));
            }
            Request::Open(config) => {
                let function = match self.functions {
                    Functions::Environment(tables) => tables.functions.open,
                    Functions::Estimator(tables) => tables.functions.open,
                    Functions::Loss(table) => table.open,
                };
                let answer = open(function, &config);
                self.shared = answer.handle();
                answer
            }
            Request::Environment(call) => self.environment(&call)?,
            Request::Estimator(call) => {
                let Functions::Estimator(tables) = self.functions else { bail!("a call of an estimator") };
                let handle = self.shared.context("a call before open")?;
                // SAFETY: the handle is open, this process has one thread that calls, and the trainer checked the rows.
                unsafe { call.perform(&tables, handle) }
            }
            Request::Loss(call) => {
                let Functions::Loss(table) = self.functions else { bail!("a call of a loss") };
                let handle = self.shared.context("a call before open")?;
                // SAFETY: as for an estimator.
                unsafe { call.perform(table, handle) }
            }
        };
        Ok(Some(Reply::Answer(answer)))
    }

    fn environment(&mut self, call: &EnvironmentCall) -> Result<Answer> {
        let Functions::Environment(tables) = self.functions else { bail!("a call of an environment") };
        let handle = if call.is_shared() { self.shared } else { self.own };
        // SAFETY: the handle is open and of the kind that the call asks for; this process has one thread that calls.
        let answer = unsafe { call.perform(&tables, handle.context("a call before open or spawn")?) };
        match call {
            EnvironmentCall::Spawn => self.own = answer.handle(),
            EnvironmentCall::Close => {
                self.own = None;
                if !self.is_copy && self.shared.is_some() {
                    // The trainer knows the instance alone.
                    return self.environment(&EnvironmentCall::CloseWorld);
                }
            }
            EnvironmentCall::CloseWorld => self.shared = None,
            _ => {}
        }
        Ok(answer)
    }

    fn fork(&mut self, descriptors: Vec<OwnedFd>) -> Result<Option<Reply>> {
        let [socket, shared] =
            <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| anyhow!("a copy needs two descriptors"))?;
        let own = [
            self.channel.socket().as_raw_fd(),
            self.channel.shared().as_raw_fd(),
            socket.as_raw_fd(),
            shared.as_raw_fd(),
        ];
        if self.own.is_some() || !guard::can_be_copied(&own)? {
            return Ok(Some(Reply::Forked(None)));
        }
        let parent = getpid();
        // SAFETY: this process has one thread, so the copy is whole.
        match unsafe { fork() }.context("cannot copy a plugin's process")? {
            ForkResult::Parent { child } => {
                self.copies.push(child.as_raw());
                Ok(Some(Reply::Forked(Some(child.as_raw()))))
            }
            ForkResult::Child => {
                self.channel = Channel::of(socket, shared);
                (self.is_copy, self.copies) = (true, Vec::new());
                guard::report_faults(&self.channel.socket());
                guard::lead_group()?;
                guard::die_with(parent)?;
                Ok(None)
            }
        }
    }
}

/// Waits for a copy, and kills it after a while, with all that its plugin started. Returns how it ended by itself.
fn end(pid: i32, patience: Duration) -> Option<i32> {
    let begin = Instant::now();
    let copy = Pid::from_raw(pid);
    let by_itself = loop {
        match ended(libc::P_PID, pid as libc::id_t, libc::WNOWAIT) {
            Ok(None) if begin.elapsed() < patience => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => break false,
            Ok(Some(_)) => break true,
            Err(_) => return None,
        }
    };
    // It is not reaped yet, so its process id is still its own. It may not lead a group yet.
    let started = below(copy);
    let _ = killpg(copy, Signal::SIGKILL);
    for process in [copy].into_iter().chain(started) {
        let _ = kill(process, Signal::SIGKILL);
    }
    let mut status = 0;
    // SAFETY: `status` is written only during the call.
    let reaped = unsafe { libc::waitpid(pid, &mut status, 0) };
    (by_itself && reaped == pid).then_some(status)
}
