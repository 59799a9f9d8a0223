//! A folder that appears under its name only when it is complete.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, park, sleep};
use std::time::Duration;

use anyhow::{Context, Result};
use nestor_args::terminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::input_error;

/// Attempts to remove a folder in which another thread still writes.
const ATTEMPTS: u32 = 200;
/// Time between two of them.
const PAUSE: Duration = Duration::from_millis(10);

/// Fills a folder of another name, and renames it. An error leaves nothing behind.
pub fn in_new_folder(dir: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let staged = staged(dir)?;
    std::fs::create_dir_all(&staged).with_context(|| format!("cannot create {}", staged.display()))?;
    let filled = fill(&staged)
        .and_then(|()| std::fs::rename(&staged, dir).with_context(|| format!("cannot rename to {}", dir.display())));
    if filled.is_err() {
        // The first error is the one to report; a leftover folder does no harm.
        let _ = std::fs::remove_dir_all(&staged);
    }
    filled
}

/// As [`in_new_folder`], for a command that has nothing else to save: a signal that asks to stop removes what there is and
/// ends the process with exit code 130.
pub fn in_new_folder_or_stop(dir: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let watch = Watch::start(staged(dir)?)?;
    let filled = in_new_folder(dir, fill);
    watch.end();
    filled
}

/// The folder's name while it is filled.
fn staged(dir: &Path) -> Result<PathBuf> {
    if dir.exists() && dir.read_dir().map_or(true, |mut entries| entries.next().is_some()) {
        return Err(input_error!("{}: already exists; choose another folder or remove it", dir.display()));
    }
    let name = dir.file_name().ok_or_else(|| input_error!("{}: not the name of a folder", dir.display()))?;
    Ok(dir.with_file_name(format!(".{}.partial-{}", name.to_string_lossy(), std::process::id())))
}

/// A thread that waits for signals.
struct Watch {
    signals: Handle,
    thread: JoinHandle<()>,
    stopped: Arc<AtomicBool>,
}

impl Watch {
    fn start(staged: PathBuf) -> Result<Self> {
        let mut all = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("watching for signals")?;
        let (signals, stopped) = (all.handle(), Arc::new(AtomicBool::new(false)));
        let seen = stopped.clone();
        let thread = std::thread::spawn(move || {
            if all.forever().next().is_none() {
                return;
            }
            seen.store(true, Ordering::SeqCst);
            for _ in 0..ATTEMPTS {
                let _ = std::fs::remove_dir_all(&staged);
                if !staged.exists() {
                    break;
                }
                sleep(PAUSE);
            }
            terminal::warn("stopped by a signal");
            nestor_host::leave_at_once(130);
        });
        Ok(Self { signals, thread, stopped })
    }

    /// Ends the thread. After a signal that thread ends the process, and this one waits for it.
    fn end(self) {
        self.signals.close();
        while self.stopped.load(Ordering::SeqCst) {
            park();
        }
        // It has nothing to say.
        let _ = self.thread.join();
    }
}
