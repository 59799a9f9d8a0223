//! Error messages (those of core/cli), and panics of libraries as errors.

use std::cell::Cell;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use nestor_args::message::{brief, message, panic_text};
pub use nestor_host::Stopped;
pub use nestor_recipe::InputError;

/// An environment failed more often than the run allows. All that was finished before is sound and can be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentFailed(pub String);

impl Display for EnvironmentFailed {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for EnvironmentFailed {}

/// Training has spoilt a network's weights, or they were never sound. A run adds the recipe key to change and its last good
/// checkpoint.
#[derive(Debug)]
pub struct Diverged {
    /// The network is the critic, not the policy.
    pub critic: bool,
    pub message: String,
}

impl Display for Diverged {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Diverged {}

thread_local! {
    /// True while this thread runs work of [`quietly`].
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs work of a library that panics on bad input; returns the panic's text in place of a report.
pub fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(outer);
    result.map_err(|panic| brief(panic_text(&*panic).unwrap_or("a panic without a message")))
}

/// True on a thread whose panic becomes an error of [`quietly`]: the panic itself needs no message.
pub fn is_quiet() -> bool {
    QUIET.get()
}
