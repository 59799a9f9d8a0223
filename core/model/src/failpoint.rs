//! Named places at which a test may kill, stop or hang the process, to prove that a run resumes from its last checkpoint
//! and that the other ranks name one that fails.
//!
//! The program installs no hook, so that its failpoints do nothing. The driver `nestor_failpoints` (`tests/drivers`)
//! does.
//!
//! Places: `mid-rollout` (of an evaluation too), `mid-mini-batch`, `mid-warm-start` (after each optimizer step);
//! `before-collective`, `mid-collective` (begun, but not waited for); of a checkpoint, in order: `mid-checkpoint` (once,
//! after the first file), `between-files`, `before-manifest`, `before-rename`, `after-rename`, `removing-old`.

use std::sync::OnceLock;

static HOOK: OnceLock<fn(&str)> = OnceLock::new();

/// Installs the function that every failpoint calls with its name. Only the first call in a process has an effect.
pub fn install(hook: fn(&str)) {
    HOOK.get_or_init(|| hook);
}

/// Calls the installed hook, if there is one.
pub fn failpoint(name: &str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}
