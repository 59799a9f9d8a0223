//! The lock of a directory that one command writes at a time. It ends with its process.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use nestor_recipe::input_error;

use nestor_args::terminal;

/// A lock by its name.
#[derive(Debug, Clone, Copy)]
pub struct LockKind {
    /// The file in the directory.
    pub file: &'static str,
    /// The option or key that names another directory.
    pub option: &'static str,
}

/// Time between two attempts.
const POLL: Duration = Duration::from_millis(50);

/// A held lock.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// None on a file system without locks.
    _file: Option<Flock<File>>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Somebody may have removed the folder, and another process may hold the lock of a new one. A file that stays is harmless.
        if self._file.as_ref().is_some_and(|file| is_same(file, &self.path)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Lock {
    /// Takes the lock of a directory. Waits up to `patience` for a process that is about to end.
    ///
    /// # Errors
    /// If another process holds it; the message names that process.
    pub fn take(dir: &Path, kind: LockKind, patience: Duration) -> Result<Self> {
        let path = dir.join(kind.file);
        let begin = Instant::now();
        loop {
            let context = || format!("locking {}", dir.display());
            let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
            let file = options.open(&path).with_context(context)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) if is_same(&file, &path) => return Self::hold(path, file).with_context(context),
                Ok(_) => std::thread::sleep(Duration::from_millis(1)), // its holder removed the file just now
                Err((mut file, Errno::EWOULDBLOCK)) if begin.elapsed() >= patience => {
                    let mut holder = String::new();
                    let _ = file.read_to_string(&mut holder);
                    return Err(taken(dir, kind.option, holder.trim()));
                }
                Err((_, Errno::EWOULDBLOCK)) => std::thread::sleep(POLL),
                Err((_, Errno::ENOLCK | Errno::ENOSYS | Errno::EOPNOTSUPP)) => {
                    terminal::warn(&format!(
                        "warning: the file system of {} has no locks: start no second command in it",
                        dir.display()
                    ));
                    return Ok(Self { path, _file: None });
                }
                Err((_, error)) => return Err(error).with_context(context),
            }
        }
    }

    /// Names this process in the file.
    fn hold(path: PathBuf, mut file: Flock<File>) -> Result<Self> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        file.set_len(0)?;
        writeln!(file, "process {} on {}", std::process::id(), host.trim())?;
        Ok(Self { path, _file: Some(file) })
    }
}

/// True if the open file is still the one at the path.
fn is_same(file: &File, path: &Path) -> bool {
    let id = |found: &fs::Metadata| (found.dev(), found.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(there)) if id(&open) == id(&there))
}

fn taken(dir: &Path, option: &str, holder: &str) -> anyhow::Error {
    let holder = if holder.is_empty() { "another process" } else { holder };
    input_error!("{} is in use by {holder}: wait until it has ended, or choose another {option}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: LockKind = LockKind { file: "run.lock", option: "--run-dir" };

    #[test]
    fn one_holder_at_a_time_and_the_refusal_names_it() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let held = Lock::take(dir.path(), LOCK, Duration::ZERO)?;
        let refused = Lock::take(dir.path(), LOCK, Duration::ZERO).expect_err("held");
        assert!(refused.is::<nestor_recipe::InputError>());
        assert!(refused.to_string().contains(&format!("process {} on ", std::process::id())), "{refused}");
        // Whoever waits gets the lock after the holder, though the holder removes the file.
        let path = dir.path().to_path_buf();
        let waiting = std::thread::spawn(move || Lock::take(&path, LOCK, Duration::from_secs(600)));
        std::thread::sleep(2 * POLL);
        drop(held);
        let second = waiting.join().expect("a waiting thread")?;
        assert!(Lock::take(dir.path(), LOCK, Duration::ZERO).is_err());
        drop(second);
        assert!(!dir.path().join(LOCK.file).exists());
        Ok(())
    }
}
