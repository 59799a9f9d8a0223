//! The limit of a file's size (`ulimit -f`).

use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;

/// Has a write beyond the limit fail with an error, as on a full disk, where the signal would end the process without a word.
/// Programs that this process starts keep the signal's default.
pub fn report_as_full_disk() {
    // Nobody reads the flag. Without a handler the process only ends as before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}
