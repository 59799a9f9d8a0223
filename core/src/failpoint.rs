//! Named places where a test may kill the process, to prove that a run goes on from its last checkpoint.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often the named failpoint was passed; only one can be armed in a process.
static PASSED: AtomicU64 = AtomicU64::new(0);

/// Kills the process by SIGKILL where `NESTOR_FAILPOINT` is `name:n` and this is the n-th pass (from 1).
pub fn failpoint(name: &str) {
    let Ok(armed) = std::env::var("NESTOR_FAILPOINT") else { return };
    let Some((armed_name, n)) = armed.rsplit_once(':') else { return };
    if armed_name == name && n.parse() == Ok(PASSED.fetch_add(1, Ordering::Relaxed) + 1) {
        // SIGKILL cannot be caught, so there is nothing to do with an error.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}
