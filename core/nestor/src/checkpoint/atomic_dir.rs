//! A directory that ranks fill together, and that appears whole or not at all.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use tch::{Kind, Tensor};

use super::manifest::{MANIFEST, Manifest, set_file};
use crate::dist::{Comm, agree, exchange};
use crate::failpoint::failpoint;
use crate::files::{Sum, flush, sum};
use crate::model::stored::{of_shards, write_file};
use crate::shard::Layout;

/// Tensors that are stored together, each rank's in a file of its own.
#[derive(Debug)]
pub struct Set<'a> {
    /// What the files are called.
    pub name: &'a str,
    /// Units.
    pub layouts: &'a [Layout],
    /// This rank's shard of each.
    pub shards: Vec<Tensor>,
}

/// Writes sets of tensors, in float32, and what `add` puts beside them (at rank 0) into a directory. All files are on disk
/// before the manifest is written, and the manifest before the directory gets its name. Where a rank fails, all of them
/// fail with its error, and nothing is left.
pub fn write_whole(comm: &dyn Comm, path: &Path, sets: &[Set], add: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let context = || format!("saving {}", path.display());
    let root = comm.rank() == 0;
    let temporary = path.with_extension("tmp");
    let parent = path.parent().unwrap_or(Path::new("."));
    agree(comm, if root { begin(parent, &temporary) } else { Ok(()) }).with_context(context)?;
    let own = write_sets(comm, &temporary, sets).and_then(|sums| {
        if root {
            add(&temporary)?;
        }
        Ok(sums)
    });
    // From here on no rank writes but rank 0.
    let written = exchange(comm, own).and_then(|sums| {
        let files = sums.into_iter().flatten().collect();
        let ended = if root { end(comm.world(), path, &temporary, files) } else { Ok(()) };
        if root && ended.is_err() {
            clear(&temporary);
        }
        agree(comm, ended)
    });
    if root && written.is_err() {
        clear(&temporary);
    }
    written.with_context(context)
}

/// Makes the empty directory, and removes what interrupted runs left.
fn begin(parent: &Path, temporary: &Path) -> Result<()> {
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    for entry in fs::read_dir(parent).with_context(|| format!("listing {}", parent.display()))? {
        let left = entry.with_context(|| format!("listing {}", parent.display()))?.path();
        if left.extension().is_some_and(|extension| extension == "tmp") {
            fs::remove_dir_all(&left).with_context(|| format!("removing {}", left.display()))?;
        }
    }
    fs::create_dir(temporary).with_context(|| format!("making {}", temporary.display()))
}

/// Half a checkpoint only takes room, which may be what was missing. The first error is the one to report.
fn clear(temporary: &Path) {
    let _ = fs::remove_dir_all(temporary);
}

/// Writes this rank's files.
fn write_sets(comm: &dyn Comm, dir: &Path, sets: &[Set]) -> Result<Vec<(String, Sum)>> {
    let mut sums = Vec::new();
    for (number, set) in sets.iter().enumerate() {
        if number == 1 {
            failpoint("mid-checkpoint");
        }
        if number > 0 {
            failpoint("between-files");
        }
        let file = set_file(set.name, comm.rank(), comm.world());
        let tensors = of_shards(set.layouts, comm, &set.shards);
        let written = write_file(&dir.join(&file), tensors, Kind::Float);
        let apart = written.is_err() && !dir.exists();
        let note = || format!("{} is not there: all ranks must see one file system", dir.display());
        let sum = if apart { written.with_context(note)? } else { written? };
        sums.push((file, sum));
    }
    Ok(sums)
}

/// Writes the manifest, and gives the directory its name.
fn end(world: usize, path: &Path, temporary: &Path, mut files: BTreeMap<String, Sum>) -> Result<()> {
    for (name, sum) in &files {
        let size = fs::metadata(temporary.join(name)).map(|metadata| metadata.len());
        ensure!(
            size.is_ok_and(|size| size == sum.bytes),
            "{}: rank 0 does not find what another rank wrote: all ranks must see one file system",
            temporary.join(name).display()
        );
    }
    for entry in fs::read_dir(temporary).with_context(|| format!("listing {}", temporary.display()))? {
        let entry = entry.with_context(|| format!("listing {}", temporary.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Entry::Vacant(new) = files.entry(name) {
            flush(&entry.path())?;
            new.insert(sum(&entry.path())?);
        }
    }
    failpoint("before-manifest");
    Manifest::new(world, files)?.write(temporary).with_context(|| format!("writing {MANIFEST}"))?;
    failpoint("before-rename");
    let parent = path.parent().unwrap_or(Path::new("."));
    remove(path)?;
    fs::rename(temporary, path).with_context(|| format!("renaming {} to {}", temporary.display(), path.display()))?;
    flush(parent)?;
    failpoint("after-rename");
    Ok(())
}

/// Removes a checkpoint, if it is there. It loses its name first, so that a part of it is never taken for one.
pub fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let aside = path.with_extension("old.tmp");
    fs::rename(path, &aside).with_context(|| format!("renaming {} to remove it", path.display()))?;
    failpoint("removing-old");
    fs::remove_dir_all(&aside).with_context(|| format!("removing {}", aside.display()))
}
