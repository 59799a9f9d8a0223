//! The workers of a world. Each has many environments, and one call at a time. A worker that was lost is replaced at the
//! next call; the instances then build their episodes again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use serde_json::Value;

use crate::config::Setup;
use crate::reply::{Body, Description};
use crate::worker::{Fault, Worker};

/// The place of one worker.
pub struct Slot {
    worker: Option<Worker>,
    /// Number of workers that this place has had. An environment lives as long as its worker.
    generation: u64,
    /// The environments of instances that were dropped.
    closed: Receiver<u64>,
}

/// An environment's place. It is closed when this is dropped, at the worker's next call.
pub struct Seat {
    slot: usize,
    /// Index of the environment in its worker.
    pub env: u64,
    closing: Sender<u64>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Nobody listens once the world is closed.
        let _ = self.closing.send(self.env);
    }
}

/// All workers.
pub struct Pool {
    setup: Setup,
    slots: Vec<Mutex<Slot>>,
    closing: Vec<Sender<u64>>,
    seats: AtomicU64,
    /// A `close` took too long or ended its worker, so that no other one is called.
    gave_up: AtomicBool,
    /// A warning of a faulty `close` is out.
    warned: AtomicBool,
    /// A warning of a worker that ended between two calls is out.
    ended: AtomicBool,
}

impl Pool {
    /// Starts the first worker. The others start with their first call.
    pub fn open(setup: Setup) -> Result<(Pool, Description)> {
        let (worker, described) = Worker::start(&setup)?;
        let (closing, receivers): (Vec<_>, Vec<_>) = (0..setup.workers).map(|_| channel()).unzip();
        let mut first = Some(worker);
        let slot = |closed| Mutex::new(Slot { worker: first.take(), generation: 1, closed });
        let slots = receivers.into_iter().map(slot).collect();
        let [gave_up, warned, ended] = Default::default();
        Ok((Pool { setup, slots, closing, seats: AtomicU64::new(0), gave_up, warned, ended }, described))
    }

    /// The checked config.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Takes a place for an environment, in the workers by turns. The first is that of the instance that was described.
    pub fn seat(&self) -> Seat {
        let number = self.seats.fetch_add(1, Ordering::Relaxed);
        let count = self.slots.len() as u64;
        let slot = (number % count) as usize;
        Seat { slot, env: number / count, closing: self.closing[slot].clone() }
    }

    /// Takes hold of an environment's worker, for one or more calls.
    pub fn hold(&self, seat: &Seat) -> Held<'_> {
        Held { slot: self.lock(seat.slot), pool: self, env: seat.env }
    }

    /// Asks the first worker for a number of tasks.
    pub fn tasks(&self, split: &str) -> Result<Body, Fault> {
        let mut held = Held { slot: self.lock(0), pool: self, env: 0 };
        held.ready().map_err(Fault::Lost)?;
        held.call("tasks", serde_json::json!({ "split": split }))
    }

    fn lock(&self, slot: usize) -> MutexGuard<'_, Slot> {
        // A panic leaves nothing half done that the next call relies on.
        self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Closes an environment in a worker, unless that was given up. Returns false if the worker is lost. A fault becomes a
    /// warning: nobody waits for the result.
    fn close(&self, worker: &mut Worker, env: u64) -> bool {
        if self.gave_up.load(Ordering::Relaxed) {
            return true;
        }
        let (message, lost) = match worker.call(env, "close", Value::Null) {
            Ok(_) => return true,
            Err(Fault::Raised(message)) => (message, false),
            Err(Fault::Lost(error)) => (format!("{error:#}"), true),
        };
        let class = &self.setup.class;
        if lost && !self.gave_up.swap(true, Ordering::Relaxed) {
            eprintln!("warning: `close` of `{class}`: {message}; no other `close` is called in this run");
        } else if !lost && !self.warned.swap(true, Ordering::Relaxed) {
            eprintln!("warning: `close` of `{class}`: {message}; further faults of `close` are not shown");
        }
        !lost
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let count = self.slots.len() as u64;
        // The first environment of each worker was described.
        let envs = self.seats.load(Ordering::Relaxed).div_ceil(count).max(1);
        let slots = std::mem::take(&mut self.slots);
        let workers =
            slots.into_iter().filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).worker);
        let pool = &*self;
        // Side by side, since each may take a while.
        std::thread::scope(|scope| {
            for mut worker in workers {
                scope.spawn(move || {
                    let closed = worker.runs() && (0..envs).all(|env| pool.close(&mut worker, env));
                    // Without a word it would close the rest by itself.
                    if !closed || pool.gave_up.load(Ordering::Relaxed) {
                        worker.kill();
                    }
                });
            }
        });
    }
}

/// A worker that no one else uses meanwhile.
pub struct Held<'a> {
    slot: MutexGuard<'a, Slot>,
    pool: &'a Pool,
    env: u64,
}

impl Held<'_> {
    /// Closes environments of instances that are gone, and starts the worker if it does not run. Returns its generation.
    pub fn ready(&mut self) -> Result<u64> {
        let slot = &mut *self.slot;
        while let (Some(worker), Ok(env)) = (&mut slot.worker, slot.closed.try_recv()) {
            if worker.runs() && !self.pool.close(worker, env) {
                slot.worker = None;
            }
        }
        if !slot.worker.as_mut().is_some_and(Worker::runs) {
            if let Some(end) = slot.worker.take().map(|mut worker| worker.end())
                && !self.pool.ended.swap(true, Ordering::Relaxed)
            {
                eprintln!(
                    "warning: a worker of `{}` {end} between two calls; its environments play their episodes again, which \
                     the metric `replays` counts; further ends are not shown",
                    self.pool.setup.class
                );
            }
            slot.generation += 1;
            slot.worker = Some(Worker::start(&self.pool.setup)?.0);
        }
        Ok(slot.generation)
    }

    /// Makes one call. A worker that is lost is not used again.
    pub fn call(&mut self, kind: &str, data: Value) -> Result<Body, Fault> {
        let slot = &mut *self.slot;
        let Some(worker) = &mut slot.worker else {
            return Err(Fault::Lost(anyhow::anyhow!("the worker is not ready")));
        };
        let result = worker.call(self.env, kind, data);
        if matches!(result, Err(Fault::Lost(_))) {
            slot.worker = None;
        }
        result
    }
}
