//! Where the wall time of an iteration goes.

use std::time::{Duration, Instant};

use super::Metrics;

/// A stopwatch with named phases; at most one runs at a time, so they never overlap.
#[derive(Debug)]
pub struct Phases {
    since: Instant,
    running: Option<(&'static str, Instant)>,
    sums: Vec<(&'static str, Duration)>,
}

impl Default for Phases {
    fn default() -> Self {
        Self::new()
    }
}

impl Phases {
    /// The first iteration's wall time begins.
    pub fn new() -> Self {
        Self { since: Instant::now(), running: None, sums: Vec::new() }
    }

    /// Ends the running phase and begins `name`; a name may come again.
    pub fn start(&mut self, name: &'static str) {
        self.stop();
        self.running = Some((name, Instant::now()));
    }

    /// Ends the running phase.
    pub fn stop(&mut self) {
        let Some((name, begin)) = self.running.take() else { return };
        let spent = begin.elapsed();
        match self.sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += spent,
            None => self.sums.push((name, spent)),
        }
    }

    /// Seconds of a phase so far, the running one included.
    pub fn seconds(&self, name: &str) -> f64 {
        let done: Duration = self.sums.iter().filter(|(known, _)| *known == name).map(|(_, sum)| *sum).sum();
        let running = self.running.filter(|(known, _)| *known == name).map_or(Duration::ZERO, |(_, at)| at.elapsed());
        (done + running).as_secs_f64()
    }

    /// Writes `time/<phase>_s` and `time/iteration_s` (wall time since the last call), and begins the next iteration.
    pub fn finish(&mut self, metrics: &mut Metrics) {
        self.stop();
        for (name, sum) in self.sums.drain(..) {
            metrics.set(format!("time/{name}_s"), sum.as_secs_f64());
        }
        let now = Instant::now();
        metrics.set("time/iteration_s", (now - self.since).as_secs_f64());
        self.since = now;
    }
}
