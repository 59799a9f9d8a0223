//! The first process of `nestor-host`. It stays the parent of the one that runs the plugin, and outlives it: it ends whatever
//! that one has started, also where the trainer was killed or the plugin's processes left their group and their parent.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, read};

use super::guard;
use crate::leave;

/// The trainer's message that asks to kill. It hangs up where it ends otherwise.
pub const KILL: &[u8] = b"k";
/// Time that a plugin has to close what it has open once the trainer is gone.
const FAREWELL: Duration = Duration::from_secs(2);
/// Time to end all that a plugin left.
const REST: Duration = Duration::from_secs(5);
/// Time between two looks for the trainer.
const LOOK: Duration = Duration::from_millis(500);

/// Divides this process. Returns in the new one, whose parent keeps it until the trainer hangs up on the lifeline.
pub fn divide(lifeline: OwnedFd) -> Result<()> {
    let (trainer, keeper) = (getppid(), getpid());
    nix::sys::prctl::set_child_subreaper(true).context("cannot adopt the processes of a plugin")?;
    // SAFETY: this process has one thread, so the copy is whole.
    match unsafe { fork() }.context("cannot start a plugin's process")? {
        ForkResult::Parent { child } => {
            // The connection to the trainer is the other one's alone.
            let _ = nix::unistd::dup2_stdin(&lifeline);
            leave_as(Keeper { host: child, lifeline, trainer: Some(trainer) }.keep())
        }
        ForkResult::Child => {
            drop(lifeline);
            guard::lead_session();
            guard::die_with(keeper)
        }
    }
}

struct Keeper {
    host: Pid,
    lifeline: OwnedFd,
    /// None once it has hung up.
    trainer: Option<Pid>,
}

impl Keeper {
    /// Waits for the end of the plugin's process, or of the trainer. Then ends all that is left. Returns how the process ended.
    fn keep(mut self) -> i32 {
        // Signals of a plugin to its parent have no effect.
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
        let mut ends = SigSet::empty();
        ends.add(Signal::SIGCHLD);
        let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).ok();
        let mut late: Option<Instant> = None;
        loop {
            if let Some(status) = self.reap() {
                end_children();
                return status;
            }
            if self.wait(ends.as_ref(), late) {
                late = Some(Instant::now());
            }
            if late.is_none() && self.trainer != Some(getppid()) {
                late = Some(Instant::now() + FAREWELL);
            }
            if late.is_some_and(|late| Instant::now() >= late) {
                let _ = kill(self.host, Signal::SIGKILL);
            }
        }
    }

    /// Waits until a process ends, the trainer hangs up or some time has passed. Returns true if the trainer asks to kill.
    fn wait(&mut self, ends: Option<&SignalFd>, late: Option<Instant>) -> bool {
        let left = late.map_or(LOOK, |late| late.saturating_duration_since(Instant::now()).min(LOOK));
        let left = PollTimeout::try_from(left.max(Duration::from_millis(5))).unwrap_or(PollTimeout::ZERO);
        let lifeline = self.trainer.map(|_| self.lifeline.as_fd());
        let watched = lifeline.into_iter().chain(ends.map(AsFd::as_fd));
        let mut watched: Vec<PollFd> = watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let seen = poll(&mut watched, left).is_ok_and(|count| count > 0);
        let called = lifeline.is_some() && watched[0].any() == Some(true);
        if let Some(ends) = ends {
            while let Ok(Some(_)) = ends.read_signal() {}
        }
        if !seen || !called {
            return false;
        }
        let asked = read(&self.lifeline, &mut [0; 1]).is_ok_and(|count| count > 0);
        if !asked {
            self.trainer = None;
        }
        asked
    }

    /// Takes note of processes that ended; the status of the plugin's once it did.
    fn reap(&self) -> Option<i32> {
        loop {
            let ended = match ended(libc::P_ALL, 0, libc::WNOWAIT) {
                Ok(None) => return None,
                Ok(Some(pid)) => pid,
                Err(Errno::EINTR) => continue,
                Err(_) => return Some(0),
            };
            if ended == self.host {
                // Not reaped yet, so the number of its group is still its own.
                let _ = killpg(ended, Signal::SIGKILL);
                return reaped(ended);
            }
            reaped(ended);
        }
    }
}

/// Takes the status of a process that has ended.
fn reaped(pid: Pid) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is written only during the call.
    let found = unsafe { libc::waitpid(pid.as_raw(), &mut status, 0) };
    (found == pid.as_raw()).then_some(status)
}

/// Kills all that is left. The orphans of a killed process become children of this one.
fn end_children() {
    let end = Instant::now() + REST;
    while Instant::now() < end {
        // Only this process takes their statuses, so their numbers are still theirs. Those of their children may not be.
        for child in processes().remove(&getpid().as_raw()).unwrap_or_default() {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        loop {
            match ended(libc::P_ALL, 0, 0) {
                Ok(None) => break,
                Ok(Some(_)) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process that has ended among these; none while all run. The status is taken unless `more` is WNOWAIT. nix's `waitid`
/// refuses a process that a realtime signal has ended.
pub fn ended(kind: libc::idtype_t, id: libc::id_t, more: i32) -> std::result::Result<Option<Pid>, Errno> {
    // SAFETY: zeros are a valid `siginfo_t`, which is written only during the call; `si_pid` is 0 or was set by it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        Errno::result(libc::waitid(kind, id, &mut info, libc::WEXITED | libc::WNOHANG | more))?;
        Ok(Some(info.si_pid()).filter(|&pid| pid != 0).map(Pid::from_raw))
    }
}

/// The children of every process that runs.
fn processes() -> BTreeMap<i32, Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        // The name in brackets may hold anything; state and parent follow it.
        let after = stat.iter().rposition(|&byte| byte == b')').map_or(&[][..], |end| &stat[end + 1..]);
        let parent = String::from_utf8_lossy(after).split_ascii_whitespace().nth(1).and_then(|text| text.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

/// The processes that a process has started, with theirs, as far as their parents live.
pub fn below(pid: Pid) -> Vec<Pid> {
    let mut children = processes();
    let (mut found, mut next) = (Vec::new(), vec![pid.as_raw()]);
    while let Some(parent) = next.pop() {
        let own = children.remove(&parent).unwrap_or_default();
        found.extend(own.iter().map(|&pid| Pid::from_raw(pid)));
        next.extend(own);
    }
    found
}

/// Ends this process as another one ended.
fn leave_as(status: i32) -> ! {
    let status = ExitStatus::from_raw(status);
    if let Some(number) = status.signal() {
        // SAFETY: these functions take numbers alone.
        unsafe { libc::signal(number, libc::SIG_DFL) };
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
        // SAFETY: as above.
        unsafe { libc::raise(number) };
    }
    leave::now(status.code().unwrap_or(1))
}

/// The lifeline, which is this process's standard output. Output goes to standard error from here on.
pub fn take_lifeline(first: RawFd) -> Result<OwnedFd> {
    let lifeline = guard::moved(std::io::stdout().as_raw_fd(), first)?;
    nix::unistd::dup2_stdout(std::io::stderr()).context("cannot replace standard output")?;
    Ok(lifeline)
}
