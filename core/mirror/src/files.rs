//! The files of a run that a mirror has beside the checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::CHECKPOINTS;
use crate::record::RECORD;

/// Marks a run directory that is being fetched.
pub const FETCHING: &str = "mirror.fetching";
/// Files that belong to this machine.
const OWN: [&str; 3] = ["run.lock", RECORD, FETCHING];
/// The begin of the name of a folder with an older copy of the run.
pub const SET_ASIDE: &str = "before-fetch-";
/// Folders whose files are written once and never change.
const WRITTEN_ONCE: [&str; 4] = ["evaluations", "images", "model", "rollouts"];

/// A file's size and time of its last change.
pub type Stamp = (u64, SystemTime);

/// The files of a run directory without its checkpoints, relative to it. Links, hidden and unfinished files are left out.
pub fn files(dir: &Path) -> Result<BTreeMap<String, Stamp>> {
    let mut found = BTreeMap::new();
    walk(dir, "", &mut found)?;
    Ok(found)
}

fn walk(dir: &Path, below: &str, found: &mut BTreeMap<String, Stamp>) -> Result<()> {
    let folder = dir.join(below);
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let set_aside = below.is_empty() && name.starts_with(SET_ASIDE);
        let unfinished = [".tmp", ".partial"].iter().any(|end| name.ends_with(end));
        if name.starts_with('.')
            || unfinished
            || set_aside
            || below.is_empty() && (name == CHECKPOINTS || OWN.contains(&&*name))
        {
            continue;
        }
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        // A file may be replaced or removed at any time: the next look finds what is there then.
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
        if metadata.is_dir() {
            walk(dir, &path, found)?;
        } else if metadata.is_file() {
            found.insert(path, (metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
        }
    }
    Ok(())
}

/// True for a file that is whole once it exists, so that its size tells if a store has it.
pub fn is_written_once(name: &str) -> bool {
    name.split_once('/').is_some_and(|(folder, _)| WRITTEN_ONCE.contains(&folder))
}
