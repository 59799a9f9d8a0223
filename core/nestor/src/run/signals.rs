//! SIGINT and SIGTERM: the first asks the run to stop, the second ends the process without saving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nestor_torch::exit_now;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::error::Stopped;
use crate::track::{StopNotice, terminal};

/// Time in which a second SIGTERM is the first one again: a service manager signals the launcher and its ranks alike,
/// and the launcher passes its own on.
pub const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Time that a plugin's call has to return after a signal.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two looks at the flag.
const LOOK: Duration = Duration::from_millis(50);
/// Stack of a thread that calls a plugin: as much as the main thread's.
const STACK: usize = 8 << 20;

/// Returns a flag that the first signal sets. A thread answers the signals; it prints the answers if `prints` is set.
pub fn watch(notice: StopNotice, prints: bool) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, stop.clone()).context("watching for signals")?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let answer = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                None => {
                    first = Some(Instant::now());
                    if prints {
                        terminal::warn(&notice.first());
                    }
                }
                Some(begin) if signal == SIGTERM && begin.elapsed() < SAME_SIGNAL => {}
                Some(_) => {
                    if prints {
                        terminal::warn(&notice.second());
                    }
                    terminal::clear();
                    exit_now(1)
                }
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(answer).context("watching for signals")?;
    Ok(stop)
}

/// Runs a call into a plugin on a thread of its own, so that a stop need not wait for it.
///
/// # Errors
/// With [`Stopped`] where the call does not return within [`GRACE`] of a signal. Its thread is abandoned.
pub fn unless_stopped<T: Send + 'static>(stop: &AtomicBool, call: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, returned) = channel();
    let work = move || drop(sender.send(call())); // the receiver is gone where the call came too late
    thread::Builder::new().name("plugin".into()).stack_size(STACK).spawn(work).context("starting a thread")?;
    let mut asked: Option<Instant> = None;
    loop {
        match returned.recv_timeout(LOOK) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => bail!("a plugin's call panicked"),
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                if asked.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                    return Err(Stopped.into());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_does_not_wait_for_a_call_that_hangs() {
        let stop = AtomicBool::new(false);
        assert_eq!(unless_stopped(&stop, || 7).expect("returned"), 7);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(unless_stopped(&stop, || 8).expect("returned in time"), 8);
        let hung = unless_stopped(&stop, || thread::sleep(Duration::MAX));
        assert!(hung.expect_err("hung").is::<Stopped>());
    }
}
