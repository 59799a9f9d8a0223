//! A child process for code that may crash, hang or leave: a fork of this one, which gives back some bytes.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::supervise::{Limits, Stopped};
use crate::{crash, leave};

/// Time between two looks at the child.
const POLL: Duration = Duration::from_millis(1);

/// The end of a child.
#[derive(Debug)]
pub enum End {
    /// It gave an answer.
    Answer(Vec<u8>),
    Signal(Signal),
    /// It ended without an answer, with this code.
    Left(i32),
    /// It took longer than the limit, and was killed.
    Late,
}

/// The place for the child's answer, from any of its threads.
#[derive(Debug)]
pub struct Answer {
    file: File,
    begun: AtomicBool,
}

impl Answer {
    /// Puts the answer and ends the child, without destructors. A second answer is not taken.
    pub fn send(&self, answer: &[u8]) -> ! {
        while self.begun.swap(true, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs(1)); // the first one ends the process
        }
        let written = (&self.file).write_all(answer).is_ok();
        leave::now(i32::from(!written))
    }
}

/// An empty file in memory.
pub fn memory_file() -> Result<File> {
    // SAFETY: the name is a C string; the descriptor is new and the file's alone.
    unsafe {
        match libc::memfd_create(c"plugin".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => bail!(std::io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

/// All that is in a file of [`memory_file`].
pub fn content(mut file: &File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).context("reading what a process left")?;
    Ok(bytes)
}

/// Runs `body` in a child, whose answer is what it returns, or what it sends. The child dies with this thread.
pub fn run(limits: &Limits, body: impl FnOnce(&'static Answer) -> Vec<u8>) -> Result<End> {
    let answer = Answer { file: memory_file()?, begun: AtomicBool::new(false) };
    // SAFETY: the child runs on this thread's copy alone. It uses the allocator and the loader, whose locks the C library
    // resets in a child, and ends without destructors.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error()).context("cannot start a process to look at a plugin"),
        0 => in_child(answer, body),
        pid => Pid::from_raw(pid),
    };
    Ok(match wait(child, limits)? {
        None => End::Late,
        Some(WaitStatus::Exited(_, 0)) => End::Answer(content(&answer.file)?),
        Some(WaitStatus::Exited(_, code)) => End::Left(code),
        Some(WaitStatus::Signaled(_, signal, _)) => End::Signal(signal),
        Some(other) => bail!("a process that looks at a plugin ended as {other:?}"),
    })
}

fn in_child(answer: Answer, body: impl FnOnce(&'static Answer) -> Vec<u8>) -> ! {
    // SAFETY: sets a number of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    crash::forget_handlers();
    let answer: &'static Answer = Box::leak(Box::new(answer));
    // A panic must not reach the parent's code, which is further up on this stack.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(answer))) {
        Ok(bytes) => answer.send(&bytes),
        Err(_) => leave::now(101),
    }
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
