//! Failures of environments that a plan survives (`rollout.env_errors`).

use anyhow::Result;

use crate::error::{InputError, Stopped, message};
use crate::track::terminal;

/// The failures of one plan of episodes at this rank.
#[derive(Debug, Clone, Copy)]
pub struct Failures {
    allowed: u64,
    pub count: u64,
}

impl Failures {
    pub fn new(allowed: u64) -> Self {
        Self { allowed, count: 0 }
    }

    /// Counts an environment's error and warns of it. Returns it where it ends the run.
    pub fn survive(&mut self, error: anyhow::Error) -> Result<()> {
        if error.is::<Stopped>() || error.chain().any(|cause| cause.is::<InputError>()) {
            return Err(error);
        }
        if self.count >= self.allowed {
            return Err(match self.allowed {
                0 => error,
                allowed => error.context(format!("more failures than `rollout.env_errors` allows ({allowed})")),
            });
        }
        self.count += 1;
        let (why, count, allowed) = (message(&error), self.count, self.allowed);
        terminal::warn(&format!("warning: {why} (failure {count} of {allowed})"));
        Ok(())
    }
}
