//! Work on files of a model folder, which are not trusted, with limits of time and memory.

use std::io::{Error, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use minijinja::{Error as Refusal, ErrorKind};
use nix::unistd::{Pid, gettid};

use crate::error::quietly;
use crate::input_error;
use crate::process_memory::rss_bytes;

/// Most seconds of a processor that the work may take.
const SECONDS: f64 = 1.0;
/// Most bytes by which the process may grow meanwhile.
const BYTES: f64 = (1u64 << 30) as f64;
/// Time between two looks at the work.
const LOOK: Duration = Duration::from_millis(5);

/// Widest indent or field, and most items of a batch or slice.
const WIDEST: usize = 10_000;

/// Does the work on a thread of its own, and returns an error as soon as it takes too long or too much memory. The thread
/// then ends with the process, which the caller must end.
pub(super) fn bounded<T: Send + 'static>(name: &str, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, done) = channel();
    let (thread, own) = channel();
    let run = move || {
        let _ = thread.send(gettid());
        let _ = sender.send(quietly(work));
    };
    let before = rss_bytes().unwrap_or(0.0);
    std::thread::Builder::new().name("template".into()).spawn(run).context("starting a thread")?;
    let thread = own.recv().context("starting a thread")?;
    loop {
        match done.recv_timeout(LOOK) {
            Ok(Ok(result)) => return result,
            Ok(Err(panic)) => return Err(input_error!("{name} fails: {panic}")),
            Err(RecvTimeoutError::Disconnected) => return Err(input_error!("{name} fails")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if rss_bytes().is_some_and(|now| now - before > BYTES) {
            return Err(input_error!("{name} takes more than {:.0} GiB of memory", BYTES / (1u64 << 30) as f64));
        }
        if seconds(thread).is_some_and(|seconds| seconds > SECONDS) {
            return Err(input_error!("{name} takes more than {SECONDS} s"));
        }
    }
}

/// A number that a template gives to a filter, unless it is too large.
pub(super) fn within(number: usize, name: &str) -> Result<usize, Refusal> {
    match number <= WIDEST {
        true => Ok(number),
        false => Err(Refusal::new(ErrorKind::InvalidOperation, format!("{name} of {number} is more than {WIDEST}"))),
    }
}

/// Seconds of a processor that a thread has taken; none where the system does not report them.
fn seconds(thread: Pid) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse::<f64>().ok().map(|nanoseconds| nanoseconds / 1e9)
}

/// A text that refuses to grow beyond its limit.
pub(super) struct LimitedText {
    bytes: Vec<u8>,
    limit: usize,
}

impl LimitedText {
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }

    pub fn into_string(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
