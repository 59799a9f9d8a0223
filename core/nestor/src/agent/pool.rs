//! Threads that reset and step environments while the policy decodes. Environments travel to a thread and back
//! through channels: one owner at a time, no locks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::expert::{Demonstration, ExpertWork};
use crate::plugin::{Env, Observation, SharedEnv};

/// Where an episode starts.
#[derive(Debug, Clone)]
pub struct Start {
    /// Split of the environment's tasks.
    pub split: String,
    /// The task.
    pub task: u64,
    /// Seed of the reset.
    pub seed: u64,
}

/// What a thread does with an environment.
pub enum Work {
    /// Starts an episode.
    Reset(Start),
    /// Plays one step.
    Step(String),
    /// Lets the expert play a whole episode.
    Expert(ExpertWork),
}

/// What came of it.
pub enum Outcome {
    /// Of a reset or a step; with the environment, for the next step.
    Seen(Env, Observation),
    /// Of the expert.
    Played(Demonstration),
}

/// The answer to one piece of work.
pub struct Answer {
    /// The caller's number.
    pub index: usize,
    /// What came of it; an error is the environment's.
    pub outcome: Result<Outcome>,
}

struct Job {
    index: usize,
    env: Option<Env>,
    work: Work,
}

struct Report {
    index: usize,
    thread: usize,
    /// An environment that is free again.
    idle: Option<Env>,
    outcome: Result<Outcome>,
}

/// The threads and the environments that wait for an episode.
pub struct Pool {
    threads: Vec<(Sender<Job>, JoinHandle<()>)>,
    /// Work under way per thread.
    load: Vec<usize>,
    reports: Receiver<Report>,
    idle: Vec<Env>,
}

impl Pool {
    /// Starts the threads.
    pub fn new(world: &SharedEnv, threads: usize) -> Result<Self> {
        let (sender, reports) = channel();
        let threads = (0..threads.max(1))
            .map(|thread| {
                let (jobs, inbox) = channel::<Job>();
                let (world, sender) = (world.clone(), sender.clone());
                let work = move || {
                    for job in inbox {
                        // The receiver is gone only when the pool is; then there is nothing left to tell.
                        if sender.send(run(&world, thread, job)).is_err() {
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
        Ok(Self { load: vec![0; threads.len()], threads, reports, idle: Vec::new() })
    }

    /// Gives work to the least busy thread; without an environment it takes one that is idle, or makes one.
    pub fn submit(&mut self, index: usize, env: Option<Env>, work: Work) -> Result<()> {
        let env = env.or_else(|| self.idle.pop());
        let thread = (0..self.load.len()).min_by_key(|&t| self.load[t]).unwrap_or(0);
        self.load[thread] += 1;
        self.threads[thread]
            .0
            .send(Job { index, env, work })
            .map_err(|_| anyhow!("environment thread {thread} has ended"))
    }

    /// Work under way.
    pub fn outstanding(&self) -> usize {
        self.load.iter().sum()
    }

    /// Keeps an environment for a later episode.
    pub fn keep(&mut self, env: Env) {
        self.idle.push(env);
    }

    /// Answers that are there or come within `patience`; with `some`, waits for one at least.
    pub fn collect(&mut self, some: bool, patience: Duration) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        let mut begin = Instant::now();
        while self.outstanding() > 0 {
            let report = if some && answers.is_empty() {
                let report = self.reports.recv().context("all environment threads have ended")?;
                begin = Instant::now();
                report
            } else {
                match self.reports.recv_timeout(patience.saturating_sub(begin.elapsed())) {
                    Ok(report) => report,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => anyhow::bail!("all environment threads have ended"),
                }
            };
            self.load[report.thread] -= 1;
            self.idle.extend(report.idle);
            answers.push(Answer { index: report.index, outcome: report.outcome });
        }
        Ok(answers)
    }

    /// Waits for all work under way and forgets it.
    pub fn drain(&mut self) {
        while self.outstanding() > 0 {
            let Ok(report) = self.reports.recv() else { return };
            self.load[report.thread] -= 1;
            self.idle.extend(report.idle);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (jobs, handle) in self.threads.drain(..) {
            drop(jobs);
            // A thread that panicked has reported it already.
            let _ = handle.join();
        }
    }
}

/// One job on its thread. A panic becomes an error, so that no answer is ever missing.
fn run(world: &SharedEnv, thread: usize, job: Job) -> Report {
    let Job { index, env, work } = job;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut env = match env {
            Some(env) => env,
            None => world.spawn()?,
        };
        Ok(match work {
            Work::Reset(start) => {
                let seen = env.reset(&start.split, start.task, start.seed)?;
                (None, Outcome::Seen(env, seen))
            }
            Work::Step(response) => {
                let seen = env.step(&response)?;
                (None, Outcome::Seen(env, seen))
            }
            Work::Expert(work) => {
                let played = work.play(&mut env)?;
                (Some(env), Outcome::Played(played))
            }
        })
    }));
    let (idle, outcome) = match result {
        Ok(Ok((idle, outcome))) => (idle, Ok(outcome)),
        Ok(Err(error)) => (None, Err(error)),
        Err(_) => (None, Err(anyhow!("an environment thread panicked"))),
    };
    Report { index, thread, idle, outcome }
}
