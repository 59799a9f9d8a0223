//! The statuses of processes that this one started.

use std::sync::Arc;

use signal_hook::consts::SIGCHLD;

/// Has the system keep the statuses of ended processes, also where a daemon or a shell ignores them (`trap '' CHLD`): their
/// numbers would be free before anybody saw the end, and a signal could reach a stranger. Programs that this process becomes
/// or starts have the signal's default.
pub fn keep() {
    // Nobody reads the flag.
    let _ = signal_hook::flag::register(SIGCHLD, Arc::default());
}
