//! A run's needs of the file system of its directory. Object stores that are mounted as folders do not meet all of them.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::input_error;

/// The folder in which a start tries the file system out.
pub const PROBE: &str = ".probe";

/// Tries out that a file grows at its end, and that a rename replaces a file and moves a directory: they make checkpoints whole.
///
/// # Errors
/// When the file system cannot do one of these; the message names it.
pub fn check_file_system(dir: &Path) -> Result<()> {
    let probe = dir.join(PROBE);
    let context = || format!("writing in {}", dir.display());
    if probe.exists() {
        fs::remove_dir_all(&probe).with_context(context)?; // a killed start left it
    }
    let [before, after] = ["before", "after"].map(|name| probe.join(name));
    let (file, new) = (before.join("file"), before.join("new"));
    fs::create_dir_all(&before).and_then(|()| fs::write(&file, "1")).with_context(context)?;
    let append = || OpenOptions::new().append(true).open(&file)?.write_all(b"2");
    let replace = || fs::write(&new, "3").and_then(|()| fs::rename(&new, &file));
    let tried: [(&str, &dyn Fn() -> io::Result<()>); 3] = [
        ("append to a file", &append),
        ("replace a file by a rename", &replace),
        ("rename a directory", &|| fs::rename(&before, &after)),
    ];
    let mut tried = tried.iter().map(|(what, act)| (what, act()));
    let failed = tried.find_map(|(what, result)| Some((what, result.err()?)));
    let _ = fs::remove_dir_all(&probe); // the first error is the one to report
    let Some((what, error)) = failed else { return Ok(()) };
    let lacks_it =
        [ErrorKind::Unsupported, ErrorKind::PermissionDenied, ErrorKind::InvalidInput, ErrorKind::CrossesDevices];
    if !lacks_it.contains(&error.kind()) {
        return Err(error).with_context(context); // a full disk or a server that is away: another start may succeed
    }
    Err(input_error!(
        "the file system of {} cannot {what} ({error}), and a run needs that: choose a --run-dir on a local disk or NFS; \
         `checkpoint.mirror` copies a run to an object store",
        dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/slow/file_systems.py` has file systems that fail.
    #[test]
    fn a_plain_disk_passes_and_keeps_no_trace() -> Result<()> {
        let dir = tempfile::tempdir()?;
        fs::create_dir_all(dir.path().join(PROBE).join("after/left"))?; // a killed start left it
        check_file_system(dir.path())?;
        assert_eq!(fs::read_dir(dir.path())?.count(), 0);
        Ok(())
    }
}
