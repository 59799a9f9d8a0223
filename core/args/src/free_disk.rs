//! Free space of a disk.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// Free bytes of the disk of a path, or of its nearest parent that exists. None where the system does not report them.
pub fn free_disk(path: &Path) -> Option<u64> {
    let whole = std::path::absolute(path).ok()?;
    let disk = statvfs(whole.ancestors().find(|path| path.exists())?).ok()?;
    disk.blocks_available().checked_mul(disk.fragment_size())
}
