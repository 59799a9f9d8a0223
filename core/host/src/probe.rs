//! Describes a plugin file in a child process: its initialisers and its entry are code that may crash, hang or leave. A
//! file that does so then harms only those who name it.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::child::{End, run};
use crate::library::{Component, Found, check_file, open};
use crate::supervise::Limits;

/// The components of a file, or one message.
type Description = Result<Vec<Found>, String>;

/// Time and number of the first attempts. Another thread of this process may hold a lock at the moment of the fork, such as
/// that of the standard library's backtraces. It stays held in the child, which then hangs. The next child finds it free.
const ATTEMPT: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 3;

/// The components of a plugin file, without loading it into this process. The inner error is one message.
pub fn describe(path: &Path, limits: &Limits) -> Result<Description> {
    if let Err(error) = check_file(path) {
        return Ok(Err(format!("{error:#}")));
    }
    for _ in 0..if limits.timeout > ATTEMPT { ATTEMPTS } else { 0 } {
        let (in_time, described) = attempt(path, &Limits { timeout: ATTEMPT, ..limits.clone() })?;
        if in_time {
            return Ok(described);
        }
    }
    attempt(path, limits).map(|(_, described)| described)
}

/// Describes a file in one child; false if that took too long.
fn attempt(path: &Path, limits: &Limits) -> Result<(bool, Description)> {
    let shown = path.display();
    let end = run(limits, |_| {
        let described = std::panic::catch_unwind(|| {
            open(path).map(|all| all.iter().map(Component::found).collect()).map_err(|error| format!("{error:#}"))
        });
        let described: Description = described.unwrap_or_else(|_| Err("describing it panicked".into()));
        serde_json::to_vec(&described).unwrap_or_default()
    })?;
    let left = || Err(format!("plugin file {shown} ended its process while it was loaded and described"));
    let described = match &end {
        End::Answer(text) => serde_json::from_slice(text).unwrap_or_else(|_| left()),
        End::Signal(signal) => {
            Err(format!("plugin file {shown} crashed with {signal} while it was loaded and described"))
        }
        End::Left(_) => left(),
        End::Late => {
            let seconds = limits.timeout.as_secs();
            Err(format!("plugin file {shown} did not load and describe itself within {seconds} s"))
        }
    };
    Ok((!matches!(end, End::Late), described))
}
