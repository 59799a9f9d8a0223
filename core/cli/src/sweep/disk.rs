//! Room on the disk for the runs of a sweep that are left.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nestor_args::free_disk::free_disk;

/// Bytes of a block in `st_blocks`, whatever the file system's own blocks are.
const BLOCK: u64 = 512;

/// A warning if as many runs as are left, each as large as this finished one, do not fit on its disk. None where its files or the disk
/// cannot be read.
pub fn shortage(finished: &Path, left: usize) -> Option<String> {
    describe(size(finished)?, left, free_disk(finished)?)
}

fn describe(each: u64, left: usize, free: u64) -> Option<String> {
    let all = each.saturating_mul(left as u64);
    let gb = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    (all > free).then(|| {
        format!(
            "warning: a finished run takes {}, the {left} runs left may take {}, and their disk has {} free; free some space, or delete the \
             folder `checkpoints` of finished runs: the sweep does not train them again, and `nestor compare` does not read it",
            gb(each),
            gb(all),
            gb(free)
        )
    })
}

/// Bytes on the disk of a folder and all below it.
fn size(folder: &Path) -> Option<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).ok()? {
        let entry = entry.ok()?;
        let facts = entry.metadata().ok()?; // does not follow links
        bytes += if facts.is_dir() { size(&entry.path())? } else { facts.blocks() * BLOCK };
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_do_not_fit_are_added_up() {
        assert_eq!(describe(3_000_000_000, 10, 30_000_000_000), None);
        let message = describe(3_600_000_000, 13, 35_000_000_000).expect("a warning");
        assert!(
            ["3.60 GB", "13 runs left", "46.80 GB", "35.00 GB free"].iter().all(|part| message.contains(part)),
            "{message}"
        );
    }

    #[test]
    fn a_folder_is_as_large_as_all_files_below_it() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("below")).expect("a folder");
        fs::write(folder.path().join("below/file"), vec![1; 1 << 20]).expect("a file");
        let bytes = size(folder.path()).expect("a size");
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        assert_eq!(size(&folder.path().join("missing")), None);
    }
}
