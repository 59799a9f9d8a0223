//! A run as a child process: this program with other arguments, its output in a file.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nestor_args::launcher::{LAUNCHER, WORK_DONE};
use nestor_args::message::last_error;
use nestor_child::{Child, words};
use nestor_plugin::files::{self, LARGE};
use nix::sys::signal::Signal;
use signal_hook::iterator::Signals;

use crate::error::Stopped;
use crate::input_error;

/// Time between two looks at a child.
const POLL: Duration = Duration::from_millis(2);

/// A running child. Dropping it kills the child and its ranks.
pub struct Running {
    child: Child,
    begin: Instant,
    /// The file of its output.
    log: PathBuf,
}

impl Running {
    /// Starts this program; its output is added to `log`.
    pub fn start(arguments: &[OsString], log: &Path) -> Result<Self> {
        let context = || format!("cannot write {}", log.display());
        let file = OpenOptions::new().create(true).append(true).open(log).with_context(context)?;
        let again = file.try_clone().with_context(context)?;
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(file).stderr(again);
        // A child whose parent was killed ends too.
        command.env(LAUNCHER, std::process::id().to_string());
        // Ctrl-C reaches this process alone, which then ends the child.
        let child = Child::start_group(&mut command).context("starting this program")?;
        Ok(Self { child, begin: Instant::now(), log: log.into() })
    }

    /// Waits a moment. Returns true if the child has ended.
    ///
    /// # Errors
    /// [`Stopped`] if a signal asked this process to stop.
    pub fn poll(&mut self, signals: &mut Signals) -> Result<bool> {
        if signals.pending().next().is_some() {
            return Err(Stopped.into());
        }
        let ended = self.child.poll().context("waiting for a run")?.is_some();
        if !ended {
            std::thread::sleep(POLL);
        }
        Ok(ended)
    }

    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Kills the process by SIGKILL, as a machine that runs out of memory would. Returns false if it had ended before.
    pub fn kill(mut self) -> Result<bool> {
        self.child.signal(Signal::SIGKILL);
        let status = self.child.wait(Duration::MAX).context("waiting for a killed run")?;
        Ok(status.signal() == Some(Signal::SIGKILL as i32))
    }

    /// Waits until the child has ended; returns its seconds.
    ///
    /// # Errors
    /// If it failed: its last line, and its log.
    pub fn finish(mut self, signals: &mut Signals) -> Result<f64> {
        while !self.poll(signals)? {}
        let status = self.child.poll().context("waiting for a run")?.context("the child has ended")?;
        if status.success() || status.code() == Some(i32::from(WORK_DONE)) {
            return Ok(self.elapsed().as_secs_f64());
        }
        let text = files::read_to_string(&self.log, LARGE).unwrap_or_default();
        let last = last_error(&text).or_else(|| text.lines().next_back().map(str::to_string));
        let last = last.unwrap_or_else(|| "it printed nothing".into());
        let how = words(status);
        let message = format!("the run {how}: {last}; its output is in {}", self.log.display());
        Err(if status.code() == Some(2) { input_error!("{message}") } else { anyhow::anyhow!("{message}") })
    }
}

/// Copies a run directory with one of its checkpoints, without episodes: a run that continues from there. Files of
/// checkpoints are linked, since a run never changes them.
pub fn fork(from: &Path, to: &Path, checkpoint: &str) -> Result<()> {
    let kept = |path: &Path| {
        let inside = path.strip_prefix(from).unwrap_or(path);
        let mut parts = inside.iter().map(|part| part.to_string_lossy());
        match (parts.next().as_deref(), parts.next().as_deref()) {
            (Some("rollouts" | "evaluations" | "images" | "run.lock"), _) => false,
            (Some("checkpoints"), Some(name)) => [checkpoint, "reference"].contains(&name),
            _ => true,
        }
    };
    copy(from, to, &kept)
}

fn copy(from: &Path, to: &Path, kept: &dyn Fn(&Path) -> bool) -> Result<()> {
    let context = || format!("copying {} to {}", from.display(), to.display());
    fs::create_dir_all(to).with_context(context)?;
    for entry in fs::read_dir(from).with_context(context)? {
        let entry = entry.with_context(context)?;
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().with_context(context)?;
        if !kept(&path) || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            copy(&path, &copied, kept)?;
        } else if !is_checkpoint_file(&path) || fs::hard_link(&path, &copied).is_err() {
            fs::copy(&path, &copied).with_context(context)?;
        }
    }
    Ok(())
}

fn is_checkpoint_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}
