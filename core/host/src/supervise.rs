//! Calls with a limit: a thread of their own makes them, and the caller waits. A call that takes too long, or that a stop
//! of the run finds under way, is given up: its thread is left behind, with all that it uses.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nestor_args::terminal;

use crate::calls::{self, Call};

/// The limit where no recipe sets one.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two looks at a call under way.
pub const POLL: Duration = Duration::from_millis(50);
/// Time that calls under way have to return once the run is asked to stop.
pub const GRACE: Duration = Duration::from_millis(500);
/// Stack of the calling thread: that of a program's main thread.
const STACK: usize = 8 << 20;

/// Number of threads left behind in a plugin.
static LEFT_BEHIND: AtomicUsize = AtomicUsize::new(0);

/// The limits of calls into plugins.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Longest time that one call may take.
    pub timeout: Duration,
    /// The recipe key that sets it.
    pub key: &'static str,
    /// Once it is set, the run is asked to stop: no call is waited for.
    pub stop: Arc<AtomicBool>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { timeout: DEFAULT_TIMEOUT, key: "env.timeout_s", stop: Arc::default() }
    }
}

impl Limits {
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The error of a call that takes too long.
    pub fn exceeded(&self, call: &Call) -> anyhow::Error {
        let seconds = self.timeout.as_secs_f64();
        anyhow!("`{}` did not return within {seconds} s (recipe key `{}`)", call.function.name(), self.key)
    }
}

/// A signal asked the run to stop. The work under way is discarded.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal")]
pub struct Stopped;

/// Counts a thread that hangs in a plugin and is not waited for.
pub fn leave_behind() {
    LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
}

/// True if a thread was left behind in a plugin. The process must then end without destructors, which the thread would
/// run into.
pub fn left_behind() -> bool {
    LEFT_BEHIND.load(Ordering::Relaxed) > 0
}

type Job = Box<dyn FnOnce() + Send>;

/// Makes the calls of threads that must not hang, the main thread above all.
#[derive(Debug, Default)]
pub struct Supervisor {
    pub limits: Limits,
    /// The thread that makes the calls, from the first one on. All calls come from one thread unless one was given up.
    thread: Mutex<Option<Sender<Job>>>,
    /// A call was given up, so the plugin must not be called to close anything.
    gave_up: AtomicBool,
}

impl Supervisor {
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// True if a call was given up. Whatever it used is still in use.
    pub fn gave_up(&self) -> bool {
        self.gave_up.load(Ordering::Relaxed)
    }

    /// Records a call that another thread gave up.
    pub fn give_up(&self) {
        self.gave_up.store(true, Ordering::Relaxed);
        leave_behind();
    }

    /// Makes a call and waits for it. A thread that is supervised itself makes the call directly.
    pub fn run<T: Send + 'static>(&self, call: Call, body: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        if calls::is_supervised() {
            return calls::recorded(&call, body);
        }
        let (sender, answer) = channel();
        self.send(Box::new(move || {
            // No one receives it once the call is given up.
            let _ = sender.send(calls::recorded(&call, body));
        }))?;
        let begin = Instant::now();
        let mut stopped = None;
        loop {
            match answer.recv_timeout(POLL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => {
                    self.forget_thread();
                    return Err(anyhow!("`{}` ended its thread", call.function.name()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.limits.stopped() && stopped.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                self.abandon();
                return Err(Stopped.into());
            }
            if begin.elapsed() >= self.limits.timeout {
                self.abandon();
                return Err(self.limits.exceeded(&call));
            }
        }
    }

    fn send(&self, job: Job) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*thread {
            Some(sender) => sender.clone(),
            None => thread.insert(start()?).clone(),
        };
        sender.send(job).map_err(|_| anyhow!("the thread that calls plugins has ended"))
    }

    fn abandon(&self) {
        self.give_up();
        self.forget_thread();
    }

    fn forget_thread(&self) {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Starts a thread that makes calls until its sender is dropped.
fn start() -> Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let work = move || {
        calls::supervise_this_thread();
        for job in jobs {
            job();
            terminal::guard_stdout();
        }
    };
    let thread = std::thread::Builder::new().name("plugins".into()).stack_size(STACK);
    thread.spawn(work).context("cannot start a thread for calls into plugins")?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::super::calls::{Function, Name};
    use super::*;

    fn call() -> Call {
        Call { plugin: Name::of("slow"), function: Function::Open, position: None }
    }

    #[test]
    fn a_call_over_its_limit_is_given_up_and_the_next_one_is_made() {
        let supervisor = Supervisor::new(Limits { timeout: Duration::from_millis(100), ..Limits::default() });
        assert_eq!(supervisor.run(call(), || Ok(5)).expect("no limit is reached"), 5);
        assert!(!supervisor.gave_up());
        let (release, held) = channel::<()>();
        let error = supervisor.run(call(), move || Ok(held.recv().is_ok())).expect_err("a limit");
        assert!(error.to_string().starts_with("`open` did not return within"), "{error}");
        assert!(supervisor.gave_up() && left_behind());
        assert_eq!(supervisor.run(call(), || Ok(6)).expect("another thread"), 6);
        drop(release);
    }

    #[test]
    fn a_stop_gives_up_what_is_under_way_but_not_a_call_that_returns() {
        let supervisor = Supervisor::default();
        supervisor.limits.stop.store(true, Ordering::Relaxed);
        assert_eq!(supervisor.run(call(), || Ok(5)).expect("returns at once"), 5);
        let (_release, held) = channel::<()>();
        let error = supervisor.run(call(), move || Ok(held.recv().is_ok())).expect_err("a stop");
        assert!(error.is::<Stopped>());
    }
}
