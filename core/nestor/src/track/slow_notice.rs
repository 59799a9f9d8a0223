//! A line on standard error where work before a run takes long and shows no progress, such as a slow environment's start.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::terminal;

/// Time after which silence looks like a hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints `still …` once if it lives for longer than five seconds.
#[derive(Debug)]
#[must_use = "the notice is taken back when this is dropped"]
pub struct SlowNotice {
    /// Held, since the end of the channel is the end of the work.
    _running: Sender<()>,
}

impl SlowNotice {
    /// A notice for work such as `opening environment alfworld`.
    pub fn new(work: impl Into<String>) -> Self {
        let (running, ended) = channel::<()>();
        let work = work.into();
        // Without a thread the line is missing, and nothing else.
        let _ = std::thread::Builder::new().name("slow notice".into()).spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                terminal::warn(&format!("still {work}"));
            }
        });
        Self { _running: running }
    }
}
