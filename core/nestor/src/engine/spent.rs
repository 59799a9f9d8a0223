//! Seconds of passes, shared between decoding and prompts.

use std::time::Duration;

use super::Counters;

/// Time of passes since it was last taken. A pass that decodes and computes prompts is shared by its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub generate: Duration,
    pub prefill: Duration,
}

/// Rows of a pass.
#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    decoding: u64,
    prompts: u64,
}

/// Takes the time of an engine's calls.
#[derive(Debug, Default)]
pub struct Stopwatch {
    spent: Spent,
    /// Rows of the pass that a call started and the next one waits for.
    in_flight: Option<Rows>,
}

impl Stopwatch {
    /// A call took `time`, and its planning moved the counters. `ahead`: it read the pass of the call before.
    pub fn add(&mut self, time: Duration, (before, after): (Counters, Counters), ahead: bool) {
        let planned = Rows { decoding: after.decoded - before.decoded, prompts: after.prefilled - before.prefilled };
        let waited_for = if ahead { self.in_flight.replace(planned).unwrap_or(planned) } else { planned };
        let rows = (waited_for.decoding + waited_for.prompts).max(1);
        let prefill = time.mul_f64(waited_for.prompts as f64 / rows as f64);
        self.spent.prefill += prefill;
        self.spent.generate += time.saturating_sub(prefill);
    }

    /// The time since the last call.
    pub fn take(&mut self) -> Spent {
        std::mem::take(&mut self.spent)
    }

    /// Forgets the pass under way.
    pub fn clear(&mut self) {
        self.in_flight = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_shared_by_its_rows() {
        let counters = |decoded, prefilled| Counters { decoded, prefilled, ..Counters::default() };
        let seconds = |spent: Spent| [spent.generate, spent.prefill].map(|time| time.as_secs());
        let second = Duration::from_secs(1);
        let mut watch = Stopwatch::default();
        watch.add(second * 2, (counters(0, 0), counters(0, 30)), false);
        watch.add(second * 4, (counters(0, 30), counters(5, 45)), false);
        assert_eq!(seconds(watch.take()), [1, 5]);
        // One pass ahead: the prompts of the first call are waited for in the second.
        watch.add(second, (counters(0, 0), counters(0, 30)), true);
        watch.add(second * 2, (counters(0, 30), counters(5, 30)), true);
        watch.add(second * 4, (counters(5, 30), counters(5, 30)), true);
        assert_eq!(seconds(watch.take()), [4, 3]);
        assert_eq!(seconds(watch.take()), [0, 0]);
    }
}
