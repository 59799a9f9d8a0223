//! Which turns go into a page that cannot hold them all.
//!
//! Files are gone through from the newest to the oldest. Each gets an equal share of the bytes that are left, or less if it
//! needs less; a share too small for a whole group is carried on to the next file, so that few groups end up spread evenly.

use std::ops::RangeInclusive;

use crate::read::{RolloutFile, Run};

/// One rollout file, in the order of [`order`].
pub(crate) struct Job<'a> {
    pub run: usize,
    pub iteration: u64,
    pub file: &'a RolloutFile,
    /// Whether turns of this iteration are asked for.
    pub wanted: bool,
    /// It is the newest of its run among those wanted.
    pub newest: bool,
}

/// All rollout files: the newest of every run, then the second newest of every run, and so on.
pub(crate) fn order<'a>(runs: &'a [Run], wanted: Option<&RangeInclusive<u64>>) -> Vec<Job<'a>> {
    let mut jobs: Vec<(usize, Job<'a>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let mut newest = true;
        for (age, (&iteration, file)) in run.rollouts.iter().rev().enumerate() {
            let wanted = wanted.is_none_or(|range| range.contains(&iteration));
            let job = Job { run: index, iteration, file, wanted, newest: newest && wanted };
            newest &= !wanted;
            jobs.push((age, job));
        }
    }
    jobs.sort_by_key(|(age, job)| (*age, job.run));
    jobs.into_iter().map(|(_, job)| job).collect()
}

/// Bytes of turns that may still be kept.
pub(crate) struct Budget {
    left: f64,
    /// What files gone through could have had but did not fill: it goes to the next ones.
    credit: f64,
    /// Bytes of a page per byte of a rollout file: first a guess, then what was measured.
    page_bytes: f64,
    file_bytes: f64,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        Self { left: bytes as f64, credit: 0.0, page_bytes: 500.0, file_bytes: 1000.0 }
    }

    /// Takes bytes for something that is always kept.
    pub fn take(&mut self, bytes: usize) {
        self.left = (self.left - bytes as f64).max(0.0);
    }

    /// Bytes that the first of the remaining files may fill, `reserved` ones of what is left being spoken for.
    pub fn open(&mut self, remaining: &[Job], reserved: f64) -> f64 {
        let wanted = remaining.iter().filter(|job| job.wanted);
        let costs = wanted.map(|job| self.predict(job.file.bytes as usize)).collect();
        let left = (self.left - reserved).max(0.0);
        self.credit = (self.credit + level(costs, left - self.credit)).min(left);
        self.credit
    }

    /// Half of one run's share of all that is left.
    pub fn half(&self, reserved: f64, runs: usize) -> f64 {
        (self.left - reserved).max(0.0) / (2 * runs) as f64
    }

    /// What turns of that many bytes in a rollout file are likely to take.
    pub fn predict(&self, file_bytes: usize) -> f64 {
        file_bytes as f64 * self.page_bytes / self.file_bytes
    }

    /// Bytes that the file gone through may still fill.
    pub fn credit(&self) -> f64 {
        self.credit
    }

    /// Notes turns that were kept, with their bytes in the rollout file.
    pub fn spend(&mut self, page_bytes: usize, file_bytes: usize) {
        self.take(page_bytes);
        self.credit = (self.credit - page_bytes as f64).max(0.0);
        self.page_bytes += page_bytes as f64;
        self.file_bytes += file_bytes as f64;
    }

    /// The file is done; if all of it was kept, the rest of its share goes back to all.
    pub fn close(&mut self, complete: bool) {
        if complete {
            self.credit = 0.0;
        }
    }
}

/// The largest share such that everybody gets it, or all that they need if that is less, out of `budget`.
fn level(mut costs: Vec<f64>, budget: f64) -> f64 {
    costs.sort_by(f64::total_cmp);
    let mut left = budget.max(0.0);
    for (place, cost) in costs.iter().enumerate() {
        let share = left / (costs.len() - place) as f64;
        if *cost > share {
            return share;
        }
        left -= cost;
    }
    // All fits: nobody needs more than the largest, but predictions may be too low.
    left + costs.last().copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::level;

    #[test]
    fn the_level_leaves_nobody_short_who_needs_little() {
        assert_eq!(level(vec![10.0, 10.0, 10.0], 15.0), 5.0);
        assert_eq!(level(vec![1.0, 10.0, 10.0], 15.0), 7.0);
        assert!(level(vec![1.0, 2.0], 15.0) >= 2.0);
        assert_eq!(level(vec![3.0], -1.0), 0.0);
    }
}
