//! The state of a run: its own word in `run.json`, checked against the lock that a living run holds.

use std::path::Path;

use nestor_plugin::files;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use crate::read::RunDir;

/// Returns `running`, `done`, `stopped`, `failed` or `interrupted`: one that says it runs while no process holds its lock.
/// For runs without `run.json`, the rows that the recipe asks for tell `done` from `interrupted`.
pub(crate) fn state(run: &RunDir) -> &'static str {
    let lock = is_locked(&run.dir);
    match run.info.get("state").and_then(Value::as_str) {
        Some("done") => "done",
        Some("stopped") => "stopped",
        Some("failed") => "failed",
        // Without locks, the run's own word must do.
        Some(_) if lock != Some(false) => "running",
        Some(_) => "interrupted",
        None if lock == Some(true) => "running",
        None if run.rows.keys().next_back().copied() >= planned(run) => "done",
        None => "interrupted",
    }
}

/// Returns the number of iterations that the recipe asks for.
pub(crate) fn planned(run: &RunDir) -> Option<u64> {
    run.recipe_value.get("iterations").and_then(Value::as_u64)
}

/// Returns true if a process holds the run's lock; `None` on a file system that has no locks. The lock is only probed, shared,
/// for an instant.
pub(crate) fn is_locked(dir: &Path) -> Option<bool> {
    let Ok(file) = files::open(&dir.join("run.lock")) else { return Some(false) };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Some(false),
        Err((_, Errno::EWOULDBLOCK)) => Some(true),
        Err(_) => None,
    }
}
