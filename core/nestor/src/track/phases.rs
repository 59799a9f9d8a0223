//! Wall time of an iteration by phase.

use std::time::{Duration, Instant};

use super::Metrics;

/// A stopwatch with named phases. Exactly one runs at any time, so phases neither overlap nor leave gaps.
#[derive(Debug)]
pub struct Phases {
    /// Start of the current row.
    since: Instant,
    /// The running phase and its start.
    running: (&'static str, Instant),
    sums: Vec<(&'static str, Duration)>,
}

impl Phases {
    /// Starts the first row and its first phase.
    pub fn new(first: &'static str) -> Self {
        let now = Instant::now();
        Self { since: now, running: (first, now), sums: Vec::new() }
    }

    /// Ends the running phase and starts `name`. A phase may run several times.
    pub fn start(&mut self, name: &'static str) {
        let now = Instant::now();
        let (ended, begin) = std::mem::replace(&mut self.running, (name, now));
        let spent = now - begin;
        match self.sums.iter_mut().find(|(known, _)| *known == ended) {
            Some((_, sum)) => *sum += spent,
            None => self.sums.push((ended, spent)),
        }
    }

    /// The running phase.
    pub fn running(&self) -> &'static str {
        self.running.0
    }

    /// Seconds of a phase in this row, including the running one.
    pub fn seconds(&self, name: &str) -> f64 {
        let done: Duration = self.sums.iter().filter(|(known, _)| *known == name).map(|(_, sum)| *sum).sum();
        let (running, begin) = self.running;
        let running = if running == name { begin.elapsed() } else { Duration::ZERO };
        (done + running).as_secs_f64()
    }

    /// Sets `time/<phase>_s` and `time/iteration_s` (wall time since the last call), and starts the next row with the
    /// phase `next`.
    pub fn finish(&mut self, metrics: &mut Metrics, next: &'static str) {
        self.start(next);
        for (name, sum) in self.sums.drain(..) {
            metrics.set(format!("time/{name}_s"), sum.as_secs_f64());
        }
        let now = self.running.1;
        metrics.set("time/iteration_s", (now - self.since).as_secs_f64());
        self.since = now;
    }
}
