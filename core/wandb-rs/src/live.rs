//! The child that uploads a run file while it grows: `wandb beta sync --live`.
//!
//! It only reads the file, so it cannot stall the writer. It runs at the lowest priority, and ends when the pipe to its
//! standard input closes, which the system does even for a parent that was killed (`live.py`).

use crate::Error;
use crate::error::Tried;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PRELUDE: &str = include_str!("live.py");

/// Time that the child may take to end after its pipe was closed.
const GRACE: Duration = Duration::from_secs(2);

/// Finds the Python that runs the `wandb` program: the program at `program`, or the one in PATH.
pub(crate) fn find_python(program: Option<&Path>) -> Result<PathBuf, Error> {
    let missing = |what: String| Error::NoProgram { what };
    let program = match program {
        Some(path) => path.to_path_buf(),
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&path).map(|dir| dir.join("wandb")).find(|file| file.is_file());
            found.ok_or_else(|| missing("the program wandb (looked in PATH)".into()))?
        }
    };
    let text = fs::read(&program).map_err(|error| missing(format!("{} ({error})", program.display())))?;
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let named = first.strip_prefix("#!").map(|line| PathBuf::from(line.trim()));
    let is_python = |path: &PathBuf| {
        path.is_file() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
    };
    // Installers write a shell line in place of a long interpreter path; such a Python is beside the program.
    let dir = program.parent().unwrap_or(Path::new("."));
    let beside = ["python3", "python"].map(|name| dir.join(name));
    let python = named.into_iter().chain(beside).find(is_python);
    python.ok_or_else(|| missing(format!("the Python of {}", program.display())))
}

pub(crate) struct Live {
    child: Child,
    /// W&B writes this file when all of the run file has arrived.
    marker: PathBuf,
}

impl Live {
    /// Starts the child on a run's directory.
    pub fn start(python: &Path, run_file: &Path, dir: &Path) -> Result<Self, Error> {
        let marker = marker(run_file);
        let logs = dir.join("logs");
        fs::create_dir_all(&logs).tried("make", &logs)?;
        let path = logs.join("sync.log");
        let log = File::options().create(true).append(true).open(&path).tried("open", &path)?;
        let errors = log.try_clone().tried("open", &path)?;
        let mut command = Command::new(python);
        // Otherwise the child's own directory and settings would go to the program's working directory.
        command.args(["-c", PRELUDE]).arg(run_file).env("WANDB_DIR", &logs).env_remove("WANDB_MODE");
        if std::env::var_os("WANDB_ERROR_REPORTING").is_none() {
            command.env("WANDB_ERROR_REPORTING", "false");
        }
        let child = command.stdin(Stdio::piped()).stdout(log).stderr(errors).spawn().tried("run", python)?;
        Ok(Self { child, marker })
    }

    /// Waits for the child to upload the rest of a file that ends with an exit record. The error has the reason of a
    /// failure.
    pub fn finish(mut self, timeout: Duration) -> Result<(), String> {
        match self.wait(timeout) {
            Some(_) if self.marker.exists() => Ok(()),
            Some(status) => Err(format!("the uploading program ended early ({status}), see logs/sync.log")),
            None => Err(format!("not all was uploaded within {} s", timeout.as_secs())),
        }
    }

    /// Returns the status once the child has ended; `None` after the timeout.
    fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if start.elapsed() >= timeout {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.child.stdin = None;
        if self.wait(GRACE).is_none() {
            // The closed pipe has asked it to end; whether this still finds it alive does not matter.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the path of the file that W&B puts beside a run file that it has uploaded. `wandb sync` then skips the run
/// file.
pub(crate) fn marker(run_file: &Path) -> PathBuf {
    run_file.with_extension("wandb.synced")
}
