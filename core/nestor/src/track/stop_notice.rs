//! The answer to a signal: the work that the stop waits for, and the work that a second signal loses.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::phases::CurrentPhase;

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
    use crate::track::Phases;

    #[test]
    fn the_answers_name_the_work() {
        let notice = StopNotice::default();
        assert!(notice.first().starts_with("stopping once the run has started, then saving"));
        let mut phases = Phases::new("start", notice.phase.clone());
        phases.start("update");
        assert_eq!(notice.first(), "stopping after this mini-batch, then saving; again: exit without saving");
        assert!(notice.second().ends_with("all work is lost"));
        notice.saved(Path::new("run/checkpoints/iteration-000002"));
        assert!(notice.second().contains("since run/checkpoints/iteration-000002 is lost"));
    }
}
