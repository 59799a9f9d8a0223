//! Threads that reset and step environments while the policy decodes. An environment travels to a thread and back: it has
//! one owner at a time.
//!
//! A thread whose call into the plugin takes too long is left behind with its environment, and another thread takes its
//! place. Nothing here waits for such a thread, whether the pool is drained or dropped.
//!
//! A call into a plugin in a process of its own ends by itself when it takes too long. Until then it costs no other
//! environment a thread: one that has waited for [`SPARE`] answers yet, but another one works in its place.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::environments::{Environments, Instance};
use super::queue::Queue;
use crate::error::Stopped;
use crate::plugin::{Call, Env, GRACE, POLL, SharedEnv, Slot, leave_behind, own_slot, supervise_this_thread};
use crate::terminal;

/// Time after which a thread that waits for another process gets a replacement.
const SPARE: Duration = Duration::from_millis(20);

/// The answer to one piece of work.
pub struct Answer<T> {
    /// The caller's number.
    pub index: usize,
    /// The environment, for the next piece of work, and the result of this one. An error keeps the environment.
    pub outcome: Result<(Env, T)>,
}

/// One piece of work and its number.
struct Job<T> {
    number: u64,
    work: Box<dyn FnOnce() -> Result<(Env, T)> + Send>,
}

/// A thread's view of its pool.
struct Worker<T> {
    jobs: Arc<Queue<Job<T>>>,
    answers: Sender<(u64, Result<(Env, T)>)>,
    state: Arc<State>,
}

/// A thread as the pool sees it.
#[derive(Default)]
struct State {
    /// Number of the piece of work under way; 0 for none.
    job: AtomicU64,
    /// Its calls into the plugin.
    slot: OnceLock<&'static Slot>,
    /// The pool has left the thread behind: it ends once it returns.
    retired: AtomicBool,
}

struct Thread {
    handle: JoinHandle<()>,
    state: Arc<State>,
    /// The call that was under way at the last look, and since when.
    seen: Option<(u64, Instant)>,
}

/// Threads that work on environments, with a result of type `T` from each piece of work.
pub struct Pool<T> {
    environments: Environments,
    threads: Vec<Thread>,
    /// Threads that wait for another process. They answer, and then end.
    waiting: Vec<Thread>,
    jobs: Arc<Queue<Job<T>>>,
    sender: Sender<(u64, Result<(Env, T)>)>,
    answers: Receiver<(u64, Result<(Env, T)>)>,
    /// The caller's number of each piece of work without an answer, and its environment.
    under_way: HashMap<u64, (usize, SharedEnv)>,
    /// Pieces of work so far. They count from 1.
    count: u64,
    looked: Instant,
}

impl<T: Send + 'static> Pool<T> {
    /// Starts the threads, one at least.
    pub fn new(environments: &Environments, threads: usize) -> Result<Self> {
        let (sender, answers) = channel();
        let mut pool = Self {
            environments: environments.clone(),
            threads: Vec::new(),
            waiting: Vec::new(),
            jobs: Arc::default(),
            sender,
            answers,
            under_way: HashMap::new(),
            count: 0,
            looked: Instant::now(),
        };
        for _ in 0..threads.max(1) {
            let thread = pool.start()?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    fn start(&self) -> Result<Thread> {
        let state = Arc::new(State::default());
        let worker = Worker { jobs: self.jobs.clone(), answers: self.sender.clone(), state: state.clone() };
        let handle = std::thread::Builder::new()
            .name("environment".into())
            .spawn(move || worker.run())
            .context("cannot start an environment thread (rollout.env_threads)")?;
        Ok(Thread { handle, state, seen: None })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// True once the run is asked to stop.
    pub fn stopped(&self) -> bool {
        // All have the flag of the run.
        self.environments.members().iter().any(|member| member.shared_env.limits().stopped())
    }

    /// Gives work on an environment to the next free thread.
    pub fn submit(
        &mut self,
        index: usize,
        instance: Instance,
        work: impl FnOnce(&mut Env) -> Result<T> + Send + 'static,
    ) {
        self.count += 1;
        self.under_way.insert(self.count, (index, instance.shared_env().clone()));
        self.jobs.push(Job { number: self.count, work: Box::new(move || run(instance, work)) });
    }

    /// Collects the answers that arrive within `patience`; with `at_least_one`, waits for the first without that limit.
    /// A call that takes longer than `env.timeout_s` is answered by an error. Ends with [`Stopped`] where it would wait
    /// although the run is asked to stop.
    pub fn collect(&mut self, at_least_one: bool, patience: Duration) -> Result<Vec<Answer<T>>> {
        let mut answers = Vec::new();
        let mut begin = Instant::now();
        let isolated = self.environments.members().iter().any(|member| member.shared_env.is_isolated());
        let look = if isolated { SPARE } else { POLL };
        while !self.under_way.is_empty() {
            let waits = at_least_one && answers.is_empty();
            let left = if waits { look } else { patience.saturating_sub(begin.elapsed()) };
            match self.answers.recv_timeout(left.min(look)) {
                Ok((number, outcome)) => {
                    // Work that was given up may be answered all the same.
                    let Some((index, _)) = self.under_way.remove(&number) else { continue };
                    if waits {
                        begin = Instant::now();
                    }
                    answers.push(Answer { index, outcome });
                }
                Err(RecvTimeoutError::Timeout) if !waits && begin.elapsed() >= patience => break,
                Err(RecvTimeoutError::Timeout) if self.stopped() => return Err(Stopped.into()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all environment threads have ended"),
            }
            if self.looked.elapsed() >= look {
                answers.extend(self.overdue()?);
            }
        }
        Ok(answers)
    }

    /// Errors in place of the answers of threads whose call takes too long. Other threads take their place.
    fn overdue(&mut self) -> Result<Vec<Answer<T>>> {
        self.looked = Instant::now();
        self.waiting.retain(|thread| !thread.handle.is_finished());
        let mut answers = Vec::new();
        for at in 0..self.threads.len() {
            let thread = &mut self.threads[at];
            let Some((count, call)) = thread.state.slot.get().and_then(|slot| slot.call()) else {
                thread.seen = None;
                continue;
            };
            // The call is of this work, since it is still under way. Work that was dropped has been left behind.
            let number = thread.state.job.load(Ordering::Acquire);
            let Some(shared_env) = self.under_way.get(&number).map(|(_, shared_env)| shared_env.clone()) else {
                continue;
            };
            match thread.seen {
                // Each waiting thread has an environment, so there are at most as many as there are of these.
                Some((seen, since)) if seen == count && shared_env.is_isolated() => {
                    if since.elapsed() >= SPARE {
                        let waiting = self.replace(at)?;
                        self.waiting.push(waiting);
                    }
                }
                Some((seen, since)) if seen == count => {
                    if since.elapsed() >= shared_env.limits().timeout {
                        answers.extend(self.give_up(at, number, &call)?);
                    }
                }
                _ => thread.seen = Some((count, Instant::now())),
            }
        }
        Ok(answers)
    }

    fn give_up(&mut self, at: usize, number: u64, call: &Call) -> Result<Option<Answer<T>>> {
        self.replace(at)?;
        leave_behind();
        let given_up = self.under_way.remove(&number).map(|(index, shared_env)| {
            let error = shared_env.limits().exceeded(call).context(call.to_string());
            Answer { index, outcome: Err(error) }
        });
        Ok(given_up)
    }

    /// Starts another thread in place of one that ends after its work. Returns that one.
    fn replace(&mut self, at: usize) -> Result<Thread> {
        let fresh = self.start()?;
        let old = std::mem::replace(&mut self.threads[at], fresh);
        old.state.retired.store(true, Ordering::Release);
        Ok(old)
    }

    /// Drops all work: what no thread has begun, and the answers of the rest. Waits a moment for calls that return, and
    /// leaves the others behind.
    pub fn drain(&mut self) -> Result<()> {
        for job in self.jobs.take() {
            self.under_way.remove(&job.number);
        }
        let begin = Instant::now();
        while !self.under_way.is_empty() {
            match self.answers.recv_timeout(GRACE.saturating_sub(begin.elapsed())) {
                Ok((number, _)) => drop(self.under_way.remove(&number)),
                Err(_) => break,
            }
        }
        for at in 0..self.threads.len() {
            if self.under_way.remove(&self.threads[at].state.job.load(Ordering::Acquire)).is_some() {
                self.replace(at)?;
                leave_behind();
            }
        }
        self.under_way.clear();
        Ok(())
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        self.jobs.close();
        let begin = Instant::now();
        for Thread { handle, .. } in self.threads.drain(..).chain(self.waiting.drain(..)) {
            while !handle.is_finished() && begin.elapsed() < GRACE {
                std::thread::sleep(Duration::from_millis(1));
            }
            if handle.is_finished() {
                // A thread that panicked has reported it already.
                let _ = handle.join();
            } else {
                leave_behind();
            }
        }
    }
}

impl<T> Worker<T> {
    fn run(self) {
        supervise_this_thread();
        let Self { jobs, answers, state } = self;
        if let Some(slot) = own_slot() {
            let _ = state.slot.set(slot);
        }
        while let Some(Job { number, work }) = jobs.pop() {
            state.job.store(number, Ordering::Release);
            let outcome = work();
            terminal::guard_stdout();
            state.job.store(0, Ordering::Release);
            // The receiver is gone only when the pool is; no one waits for the answer then.
            if answers.send((number, outcome)).is_err() || state.retired.load(Ordering::Acquire) {
                break;
            }
        }
    }
}

/// One piece of work on its thread. A panic becomes an error, so that no answer is ever missing.
fn run<T>(instance: Instance, work: impl FnOnce(&mut Env) -> Result<T>) -> Result<(Env, T)> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut env = instance.open()?;
        let done = work(&mut env)?;
        Ok((env, done))
    }));
    result.unwrap_or_else(|_| Err(anyhow!("an environment thread panicked")))
}
