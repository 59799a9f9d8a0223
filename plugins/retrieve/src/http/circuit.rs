//! Keeps queries away from a server that fails again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `circuit`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CircuitConfig {
    /// Failed requests in a row after which a server gets no requests for a while.
    pub failures: u32,
    /// Seconds until one request tries the server again.
    pub wait_s: f64,
}

impl Default for CircuitConfig {
    fn default() -> Self {
        Self { failures: 5, wait_s: 5.0 }
    }
}

/// The circuit of one server. Open, it lets one request through each time that the wait is over; a success closes it.
pub struct Circuit {
    failures: u32,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Failures since the last success.
    failures: u32,
    /// When the next request may try; none while the circuit is closed.
    open_until: Option<Instant>,
    cause: String,
}

impl Circuit {
    /// Returns a closed circuit.
    pub fn new(config: &CircuitConfig) -> Self {
        let wait = Duration::from_secs_f64(config.wait_s);
        Self { failures: config.failures, wait, state: Mutex::default() }
    }

    /// True if a request may be made. An open circuit then counts the next wait from `now`.
    pub fn admits(&self, now: Instant) -> bool {
        let mut state = self.state();
        match &mut state.open_until {
            None => true,
            Some(until) if *until <= now => {
                *until = now + self.wait;
                true
            }
            Some(_) => false,
        }
    }

    /// Notes a success.
    pub fn succeeded(&self) {
        *self.state() = State::default();
    }

    /// Notes a failure and its cause.
    pub fn failed(&self, now: Instant, cause: &str) {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        state.cause = cause.to_owned();
        if state.failures >= self.failures {
            state.open_until = Some(now + self.wait);
        }
    }

    /// The state as a phrase: the number of failures and the last cause.
    pub fn describe(&self) -> String {
        let state = self.state();
        format!("not asked after {} failures in a row, the last: {}", state.failures, state.cause)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_failures_in_a_row_and_lets_one_trial_through() {
        let circuit = Circuit::new(&CircuitConfig { failures: 2, wait_s: 10.0 });
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        circuit.failed(at(0), "x");
        circuit.succeeded();
        circuit.failed(at(1), "x");
        assert!(circuit.admits(at(1)), "a success came between");
        circuit.failed(at(2), "y");
        assert!(!circuit.admits(at(11)));
        assert_eq!(circuit.describe(), "not asked after 2 failures in a row, the last: y");
        assert!(circuit.admits(at(12)));
        assert!(!circuit.admits(at(13)), "one trial at a time");
        circuit.failed(at(14), "z");
        assert!(!circuit.admits(at(23)));
        assert!(circuit.admits(at(24)));
        circuit.succeeded();
        assert!(circuit.admits(at(24)) && circuit.admits(at(24)));
    }
}
