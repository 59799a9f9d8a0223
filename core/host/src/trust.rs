//! Refuses plugin files that somebody else could change.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use nestor_recipe::input_error;
use nix::unistd::getegid;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Refuses a file if others may write it, or replace it in its folder. In a sticky folder such as /tmp only the owner of a
/// file may replace it. A group counts as others, unless it is that of the user or the private one of the owner.
pub fn check(path: &Path) -> Result<()> {
    let context = || format!("reading {}", path.display());
    let file = path.canonicalize().with_context(context)?;
    check_mode("plugin file", &file)?;
    match file.parent() {
        Some(folder) if folder.metadata().with_context(context)?.mode() & STICKY == 0 => {
            check_mode("the folder of a plugin,", folder)
        }
        _ => Ok(()),
    }
}

fn check_mode(what: &str, path: &Path) -> Result<()> {
    let (metadata, shown) = (path.metadata().with_context(|| format!("reading {}", path.display()))?, path.display());
    let mode = metadata.mode();
    let own_group = metadata.gid() == getegid().as_raw() || metadata.gid() == metadata.uid();
    let (who, change) = match () {
        () if mode & OTHERS_WRITE != 0 => ("every user of this machine", "o-w"),
        () if mode & GROUP_WRITES != 0 && !own_group => ("all members of its group", "g-w"),
        () => return Ok(()),
    };
    Err(input_error!(
        "{what} {shown} can be changed by {who} (mode {:03o}), and nestor would run what they put there: chmod {change} {shown}",
        mode & 0o7777
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_others_can_change_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plugin.so");
        std::fs::write(&file, "x").unwrap();
        let modes = |file_mode, dir_mode| {
            set_permissions(&file, Permissions::from_mode(file_mode)).unwrap();
            set_permissions(dir.path(), Permissions::from_mode(dir_mode)).unwrap();
            check(&file).map_err(|error| error.to_string())
        };
        assert_eq!(modes(0o644, 0o755), Ok(()));
        assert_eq!(modes(0o664, 0o775), Ok(())); // the group is the user's own
        assert_eq!(modes(0o644, 0o1777), Ok(()));
        assert!(modes(0o646, 0o755).unwrap_err().ends_with(&format!("chmod o-w {}", file.display())));
        assert!(modes(0o644, 0o777).unwrap_err().ends_with(&format!("chmod o-w {}", dir.path().display())));
    }
}
