//! Child processes that end with their owner: dropped, they are killed with their group and waited for.
//!
//! A killed owner drops nothing. A child that must not outlive it notices by itself: its standard input or another pipe
//! ends, or it asks the kernel for a signal ([`signal_at_end_of`]).

#![forbid(unsafe_code)]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child as Process, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getppid};

/// First and longest time between two looks at a child that is waited for.
const POLLS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// A child process. Its pipes are those that its command asked for.
#[derive(Debug)]
pub struct Child {
    process: Process,
    leads_group: bool,
    /// Its status, once it is reaped. Its process id may be another's from there on.
    status: Option<ExitStatus>,
    pub stdin: Option<ChildStdin>,
    pub stdout: Option<ChildStdout>,
    pub stderr: Option<ChildStderr>,
}

impl Child {
    /// Starts a command.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut process = command.spawn()?;
        let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        Ok(Self { process, leads_group: false, status: None, stdin, stdout, stderr })
    }

    /// Starts a command as the leader of a process group. A terminal's Ctrl-C then reaches the owner alone, and what the child
    /// leaves in its group ends with it.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_group(command: &mut Command) -> io::Result<Self> {
        let mut child = Self::start(command.process_group(0))?;
        child.leads_group = true;
        Ok(child)
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    /// The status of a child that has ended; none while it runs.
    ///
    /// # Errors
    /// When the system has no such child, as where SIGCHLD is ignored.
    pub fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_some() || self.runs()? {
            return Ok(self.status);
        }
        if self.leads_group {
            // The child is not reaped yet, so the group's number is still its own.
            let _ = killpg(self.pid(), Signal::SIGKILL);
        }
        self.status = self.process.try_wait()?;
        Ok(self.status)
    }

    /// False once the child has ended. Reaps nothing.
    fn runs(&self) -> io::Result<bool> {
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.pid()), peek) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => Ok(true),
            Err(Errno::ECHILD) => Err(Errno::ECHILD.into()),
            // nix knows no realtime signal, which may have ended the child.
            Ok(_) | Err(_) => Ok(false),
        }
    }

    /// Waits for the child to end by itself. None if it still runs after this time, and where [`Self::poll`] fails.
    pub fn wait(&mut self, at_most: Duration) -> Option<ExitStatus> {
        let (begin, [mut pause, longest]) = (Instant::now(), POLLS);
        loop {
            let left = at_most.saturating_sub(begin.elapsed());
            match self.poll() {
                Ok(None) if !left.is_zero() => sleep(pause.min(left)),
                status => return status.ok().flatten(),
            }
            pause = longest.min(2 * pause);
        }
    }

    /// Sends a signal to the process alone; to none that is known to have ended.
    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            // It may have ended just now, but it is not reaped yet, so its number is still its own.
            let _ = kill(self.pid(), signal);
        }
    }

    /// Kills the process, and the group that it leads or has come to lead, and waits for its end. Stopped processes end too.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.poll()? {
            return Ok(status);
        }
        let _ = killpg(self.pid(), Signal::SIGKILL);
        self.signal(Signal::SIGKILL);
        let status = self.process.wait()?;
        self.status = Some(status);
        Ok(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // No caller is left who could act on a failure.
        let _ = self.kill();
    }
}

/// The end of a process in words: `ended with code 1`, `was killed by signal 9`.
pub fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
    }
}

/// In a child: has the kernel send this process a signal when its parent ends. Returns false if that has ended already: then
/// no signal will come.
///
/// # Errors
/// When the kernel refuses.
pub fn signal_at_end_of(parent: Pid, signal: Signal) -> io::Result<bool> {
    set_pdeathsig(signal)?;
    Ok(getppid() == parent)
}
