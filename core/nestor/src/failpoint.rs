//! Named places where a test may kill or stop the process, to prove that a run goes on from its last checkpoint.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often the named failpoint was passed; only one can be armed in a process.
static PASSED: AtomicU64 = AtomicU64::new(0);

/// Kills the process by SIGKILL where `NESTOR_FAILPOINT` is `name:n` and this is the n-th pass (from 1); where it is
/// `name:n@r`, only rank r (torchrun's variable `RANK`). Where it ends in `=term`, it is SIGTERM instead.
///
/// Places: `mid-rollout`, `mid-mini-batch`; of a checkpoint, in order: `mid-checkpoint` (once, after the first file),
/// `between-files`, `before-manifest`, `before-rename`, `after-rename`, `removing-old`.
pub fn failpoint(name: &str) {
    let Ok(armed) = std::env::var("NESTOR_FAILPOINT") else { return };
    let (armed, signal) = match armed.strip_suffix("=term") {
        Some(armed) => (armed, Signal::SIGTERM),
        None => (&armed[..], Signal::SIGKILL),
    };
    let Some((armed_name, n)) = armed.rsplit_once(':') else { return };
    let (n, rank) = n.split_once('@').map_or((n, None), |(n, rank)| (n, Some(rank)));
    if rank.is_some_and(|rank| std::env::var("RANK").unwrap_or("0".into()) != rank) {
        return;
    }
    if armed_name == name && n.parse() == Ok(PASSED.fetch_add(1, Ordering::Relaxed) + 1) {
        // A process may always send itself a signal.
        let _ = kill(Pid::this(), signal);
    }
}
