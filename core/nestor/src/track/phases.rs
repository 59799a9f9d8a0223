//! Wall time of an iteration by phase.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use super::Metrics;
use crate::stop_notice::CurrentPhase;

/// A stopwatch with named phases. Exactly one runs at any time, so phases neither overlap nor leave gaps.
#[derive(Debug)]
pub struct Phases {
    /// The running phase and its start.
    running: (&'static str, Instant),
    /// Times of this row. A resumed row has some from before.
    sums: Vec<(Cow<'static, str>, Duration)>,
    current: CurrentPhase,
}

impl Phases {
    /// Starts the first row and its first phase. Announces each phase in `current`.
    pub fn new(first: &'static str, current: CurrentPhase) -> Self {
        current.set(first);
        Self { running: (first, Instant::now()), sums: Vec::new(), current }
    }

    /// Ends the running phase and starts `name`. A phase may run several times.
    pub fn start(&mut self, name: &'static str) {
        let now = Instant::now();
        let (ended, begin) = std::mem::replace(&mut self.running, (name, now));
        self.add(ended.into(), now - begin);
        self.current.set(name);
    }

    fn add(&mut self, name: Cow<'static, str>, spent: Duration) {
        match self.sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += spent,
            None => self.sums.push((name, spent)),
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

    /// The seconds of each phase of this row so far, for a checkpoint.
    pub fn so_far(&self) -> Vec<(String, f64)> {
        let mut names: Vec<&str> = self.sums.iter().map(|(name, _)| &**name).collect();
        if !names.contains(&self.running.0) {
            names.push(self.running.0);
        }
        names.into_iter().map(|name| (name.to_string(), self.seconds(name))).collect()
    }

    /// Adds the times of a row that a checkpoint holds.
    pub fn resume(&mut self, so_far: Vec<(String, f64)>) {
        for (name, seconds) in so_far {
            // A checkpoint is not trusted: a time that is none counts as zero.
            self.add(name.into(), Duration::try_from_secs_f64(seconds).unwrap_or_default());
        }
    }

    /// Sets `time/<phase>_s` and `time/iteration_s` (their sum), and starts the next row with the phase `next`.
    pub fn finish(&mut self, metrics: &mut Metrics, next: &'static str) {
        self.start(next);
        let mut all = Duration::ZERO;
        for (name, sum) in self.sums.drain(..) {
            metrics.set(format!("time/{name}_s"), sum.as_secs_f64());
            all += sum;
        }
        metrics.set("time/iteration_s", all.as_secs_f64());
    }
}
