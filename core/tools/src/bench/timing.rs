//! Times of repeated work, the warm-up apart from the repetitions, and a profile of one more run.

use std::time::Instant;

use anyhow::Result;
use nestor_torch::profile;
use serde_json::{Value, json};
use tch::Device;

/// Entries of a profile that are reported.
const DEAREST: usize = 15;

/// Seconds of each run of some work.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// The first run, which also pays for what is built once.
    pub warm_up: f64,
    /// The runs after it.
    pub all: Vec<f64>,
}

impl Times {
    /// Runs `work` once to warm up, then `repeats` times. It gets the number of the run, from 0, and returns its seconds.
    pub fn of(repeats: usize, mut work: impl FnMut(usize) -> Result<f64>) -> Result<Self> {
        let warm_up = work(0)?;
        Ok(Self { warm_up, all: (1..=repeats).map(work).collect::<Result<_>>()? })
    }

    pub fn median(&self) -> f64 {
        median(self.all.clone())
    }

    /// The fields of a report: median, all repetitions, and the warm-up.
    pub fn write(&self, report: &mut Value) {
        report["seconds"] = self.median().into();
        report["seconds_all"] = seconds_of(&self.all);
        report["warm_up_s"] = self.warm_up.into();
    }
}

/// Seconds of one run.
pub fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64())
}

pub fn seconds_of(seconds: &[f64]) -> Value {
    seconds.iter().copied().collect()
}

pub fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// The first and the hundredth of some passes, in milliseconds, where there are as many: equal unless the cost of a pass
/// grows with their number, or falls because shapes return.
pub fn first_and_hundredth(report: &mut Value, seconds: &[f64]) {
    for (name, number) in [("first_ms", 1), ("hundredth_ms", 100)] {
        if let Some(seconds) = seconds.get(number - 1) {
            report[name] = json!(1e3 * seconds);
        }
    }
}

/// Runs `work` under libtorch's profiler; it returns its number of passes over a network of `layers` blocks. The report has
/// the dearest kernels of the GPU, or operations of the CPU.
pub fn profiled(device: Device, layers: i64, work: impl FnOnce() -> Result<usize>) -> Result<Value> {
    let begin = Instant::now();
    let (passes, profile) = profile(device.is_cuda(), || {
        let passes = work()?;
        if let Device::Cuda(index) = device {
            tch::Cuda::synchronize(index as i64);
        }
        Ok(passes)
    })?;
    let dearest = profile.dearest.iter().take(DEAREST);
    let per_pass = |count: u64| count as f64 / passes.max(1) as f64;
    Ok(json!({
        "ms": 1e3 * begin.elapsed().as_secs_f64(),
        "busy_ms": profile.dearest.iter().map(|dear| 1e3 * dear.seconds).sum::<f64>(),
        "passes": passes,
        "launches": profile.launches,
        "launches_per_pass": per_pass(profile.launches),
        "launches_per_layer": per_pass(profile.launches) / layers as f64,
        "syncs_per_pass": per_pass(profile.syncs),
        "dearest": dearest
            .map(|dear| json!({ "name": dear.name, "ms": 1e3 * dear.seconds, "calls": dear.calls }))
            .collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_is_no_repetition() {
        let times = Times::of(3, |run| Ok([9.0, 3.0, 1.0, 2.0][run])).expect("times");
        assert_eq!(times, Times { warm_up: 9.0, all: vec![3.0, 1.0, 2.0] });
        let mut report = json!({});
        times.write(&mut report);
        assert_eq!(report, json!({ "seconds": 2.0, "seconds_all": [3.0, 1.0, 2.0], "warm_up_s": 9.0 }));
    }

    #[test]
    fn a_hundredth_pass_needs_a_hundred() {
        let mut report = json!({});
        first_and_hundredth(&mut report, &[0.5; 99]);
        assert_eq!(report, json!({ "first_ms": 500.0 }));
        let passes: Vec<f64> = (1..=100).map(f64::from).collect();
        first_and_hundredth(&mut report, &passes);
        assert_eq!(report, json!({ "first_ms": 1e3, "hundredth_ms": 1e5 }));
    }
}
