//! Threads that reset and step environments while the policy decodes. Environments travel to a thread and back
//! through channels: one owner at a time, no locks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::plugin::{Env, SharedEnv};

/// The answer to one piece of work.
pub struct Answer<T> {
    /// The caller's number.
    pub index: usize,
    /// The environment, for the next piece of work, and the result of this one. An error keeps the environment.
    pub outcome: Result<(Env, T)>,
    thread: usize,
}

type Job<T> = Box<dyn FnOnce() -> Answer<T> + Send>;

/// Threads that work on environments, with a result of type `T` from each piece of work.
pub struct Pool<T> {
    shared_env: SharedEnv,
    threads: Vec<(Sender<Job<T>>, JoinHandle<()>)>,
    /// Pieces of work under way per thread.
    load: Vec<usize>,
    answers: Receiver<Answer<T>>,
}

impl<T: Send + 'static> Pool<T> {
    /// Starts the threads, one at least.
    pub fn new(shared_env: &SharedEnv, threads: usize) -> Result<Self> {
        let (sender, answers) = channel();
        let threads = (0..threads.max(1))
            .map(|thread| {
                let (jobs, inbox) = channel::<Job<T>>();
                let sender = sender.clone();
                let work = move || {
                    for job in inbox {
                        // The receiver is gone only when the pool is; no one waits for the answer then.
                        if sender.send(job()).is_err() {
                            break;
                        }
                    }
                };
                let handle = std::thread::Builder::new()
                    .name(format!("environment {thread}"))
                    .spawn(work)
                    .context("cannot start an environment thread (rollout.env_threads)")?;
                Ok((jobs, handle))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { shared_env: shared_env.clone(), load: vec![0; threads.len()], threads, answers })
    }

    /// Gives work on an environment to the least busy thread, which makes a new environment where none is given.
    pub fn submit(
        &mut self,
        index: usize,
        env: Option<Env>,
        work: impl FnOnce(&mut Env) -> Result<T> + Send + 'static,
    ) -> Result<()> {
        let thread = (0..self.load.len()).min_by_key(|&t| self.load[t]).unwrap_or(0);
        self.load[thread] += 1;
        let shared_env = self.shared_env.clone();
        let job = move || Answer { index, outcome: run(&shared_env, env, work), thread };
        self.threads[thread].0.send(Box::new(job)).map_err(|_| anyhow!("environment thread {thread} has ended"))
    }

    /// Pieces of work under way.
    pub fn outstanding(&self) -> usize {
        self.load.iter().sum()
    }

    /// Collects the answers that arrive within `patience`; with `at_least_one`, waits for the first without a limit.
    pub fn collect(&mut self, at_least_one: bool, patience: Duration) -> Result<Vec<Answer<T>>> {
        let mut answers = Vec::new();
        let mut begin = Instant::now();
        while self.outstanding() > 0 {
            let answer = if at_least_one && answers.is_empty() {
                let answer = self.answers.recv().context("all environment threads have ended")?;
                begin = Instant::now();
                answer
            } else {
                match self.answers.recv_timeout(patience.saturating_sub(begin.elapsed())) {
                    Ok(answer) => answer,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => bail!("all environment threads have ended"),
                }
            };
            self.load[answer.thread] -= 1;
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Waits for all work under way and drops its answers.
    pub fn drain(&mut self) {
        while self.outstanding() > 0 {
            let Ok(answer) = self.answers.recv() else { return };
            self.load[answer.thread] -= 1;
        }
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        for (jobs, handle) in self.threads.drain(..) {
            drop(jobs);
            // A thread that panicked has reported it already.
            let _ = handle.join();
        }
    }
}

/// One piece of work on its thread. A panic becomes an error, so that no answer is ever missing.
fn run<T>(shared_env: &SharedEnv, env: Option<Env>, work: impl FnOnce(&mut Env) -> Result<T>) -> Result<(Env, T)> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut env = env.map_or_else(|| shared_env.spawn(), Ok)?;
        let done = work(&mut env)?;
        Ok((env, done))
    }));
    result.unwrap_or_else(|_| Err(anyhow!("an environment thread panicked")))
}
