//! Describes a plugin file in a child process: its initialisers and its entry are code that may crash, hang or leave. A
//! file that does so then harms only those who name it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Stopped;
use crate::library::{Component, Found, check_file, open};
use crate::supervise::Limits;
use crate::{crash, leave};

/// Time between two looks at the child.
const POLL: Duration = Duration::from_millis(1);

/// The components of a file, or one message.
type Description = Result<Vec<Found>, String>;

/// Time and number of the first attempts. Another thread of this process may hold a lock at the moment of the fork, such as
/// that of the standard library's backtraces. It stays held in the child, which then hangs. The next child finds it free.
const ATTEMPT: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 3;

/// The components of a plugin file, without loading it into this process. The inner error is one message.
pub fn describe(path: &Path, limits: &Limits) -> Result<Description> {
    if let Err(error) = check_file(path) {
        return Ok(Err(format!("{error:#}")));
    }
    for _ in 0..if limits.timeout > ATTEMPT { ATTEMPTS } else { 0 } {
        let (in_time, described) = attempt(path, &Limits { timeout: ATTEMPT, ..limits.clone() })?;
        if in_time {
            return Ok(described);
        }
    }
    attempt(path, limits).map(|(_, described)| described)
}

/// Describes a file in one child; false if that took too long.
fn attempt(path: &Path, limits: &Limits) -> Result<(bool, Description)> {
    // SAFETY: the name is a C string; the descriptor is new and this value's alone.
    let mut file = unsafe {
        match libc::memfd_create(c"plugin".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => bail!(std::io::Error::last_os_error()),
            fd => File::from_raw_fd(fd),
        }
    };
    // SAFETY: the child runs on this thread's copy alone. It uses the allocator and the loader, whose locks the C library
    // resets in a child, none of this program's own locks, and it ends without destructors.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error()).context("cannot start a process to look at a plugin"),
        0 => in_child(path, &mut file),
        pid => Pid::from_raw(pid),
    };
    let status = wait(child, limits)?;
    let (mut text, shown) = (String::new(), path.display());
    file.rewind().and_then(|()| file.read_to_string(&mut text)).context("reading a plugin's description")?;
    let described = match (status, serde_json::from_str(&text)) {
        (Some(WaitStatus::Exited(_, 0)), Ok(described)) => described,
        (Some(WaitStatus::Signaled(_, signal, _)), _) => {
            Err(format!("plugin file {shown} crashed with {signal} while it was loaded and described"))
        }
        (None, _) => {
            let seconds = limits.timeout.as_secs();
            Err(format!("plugin file {shown} did not load and describe itself within {seconds} s"))
        }
        _ => Err(format!("plugin file {shown} ended its process while it was loaded and described")),
    };
    Ok((status.is_some(), described))
}

fn in_child(path: &Path, file: &mut File) -> ! {
    crash::forget_handlers();
    let described = std::panic::catch_unwind(|| {
        open(path).map(|all| all.iter().map(Component::found).collect()).map_err(|error| format!("{error:#}"))
    });
    let described: Result<Vec<Found>, String> = described.unwrap_or_else(|_| Err("describing it panicked".into()));
    let written = serde_json::to_vec(&described).is_ok_and(|text| file.write_all(&text).is_ok());
    leave::now(i32::from(!written))
}

/// Waits for the child. None if it takes too long.
fn wait(child: Pid, limits: &Limits) -> Result<Option<WaitStatus>> {
    let begin = Instant::now();
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).context("waiting for a process that looks at a plugin")? {
            WaitStatus::StillAlive => {}
            status => return Ok(Some(status)),
        }
        let late = begin.elapsed() >= limits.timeout;
        if late || limits.stopped() {
            // It is not reaped yet, so its process id is still its own.
            let _ = kill(child, Signal::SIGKILL);
            let _ = waitpid(child, None);
            return if late { Ok(None) } else { Err(Stopped.into()) };
        }
        std::thread::sleep(POLL);
    }
}
