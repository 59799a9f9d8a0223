//! The answer to a signal: the work that the stop waits for, and the work that a second signal loses.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the phase that runs now, for other threads.
#[derive(Debug, Clone, Default)]
pub struct CurrentPhase(Arc<Mutex<&'static str>>);

impl CurrentPhase {
    /// The name; empty before the first phase.
    pub fn name(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the phase that begins.
    pub fn set(&self, name: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }
}

/// The facts that the answer to a signal names. The run keeps them up to date; another thread reads them.
#[derive(Debug, Clone, Default)]
pub struct StopNotice {
    /// The phase that runs now.
    pub phase: CurrentPhase,
    newest: Arc<Mutex<Option<PathBuf>>>,
}

impl StopNotice {
    /// Notes the newest checkpoint.
    pub fn saved(&self, checkpoint: &Path) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(checkpoint.into());
    }

    /// The answer to the first signal.
    pub fn first(&self) -> String {
        let when = match self.phase.name() {
            "" | "start" => "once the run has started",
            "warm_start" => "after this step of the warm start",
            "rollout" => "without these episodes",
            "evaluate" => "in this evaluation",
            "old_logprobs" | "reference" | "values" => "after this micro-batch",
            "critic" | "update" => "after this mini-batch",
            "checkpoint" => "after this checkpoint",
            _ => "now",
        };
        format!("stopping {when}, then saving; again: exit without saving")
    }

    /// The answer to the second signal.
    pub fn second(&self) -> String {
        match &*self.newest.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(newest) => format!("exit without saving: the work since {} is lost", newest.display()),
            None => "exit without saving: there is no checkpoint, so all work is lost".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_name_the_work() {
        let notice = StopNotice::default();
        assert!(notice.first().starts_with("stopping once the run has started, then saving"));
        notice.phase.set("update");
        assert_eq!(notice.first(), "stopping after this mini-batch, then saving; again: exit without saving");
        assert!(notice.second().ends_with("all work is lost"));
        notice.saved(Path::new("run/checkpoints/iteration-000002"));
        assert!(notice.second().contains("since run/checkpoints/iteration-000002 is lost"));
    }
}
