//! A directory that all ranks write together, and that appears complete or not at all.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tch::{Device, Kind, Tensor};

use super::manifest::{MANIFEST, Manifest, set_file};
use super::moment::is_leftover;
use crate::failpoint::failpoint;
use crate::files::{Sum, flush, sum};
use crate::model::stored::{of_shards, write_file};
use crate::ranks::{Comm, agree, exchange};
use crate::shard::Layout;
use crate::terminal;

/// Tensors that are stored together: one file per rank, with that rank's shards.
#[derive(Debug)]
pub struct TensorSet<'a> {
    /// Name of the files, without rank and extension.
    pub name: String,
    /// The layout of each unit.
    pub layouts: &'a [Layout],
    /// This rank's tensor of each layout: its shard of the unit, or what it owns of a part.
    pub shards: Vec<Tensor>,
}

impl TensorSet<'_> {
    /// A copy on the host, which later changes of the tensors do not reach.
    pub fn copied(&self) -> CopiedSet {
        let copied = |shard: &Tensor| match shard.device() {
            Device::Cpu => shard.detach().copy(),
            _ => shard.detach().to_device(Device::Cpu),
        };
        let shards = self.shards.iter().map(copied).collect();
        CopiedSet { name: self.name.clone(), layouts: self.layouts.to_vec(), shards }
    }
}

/// A [`TensorSet`] that a thread may hold.
#[derive(Debug)]
pub struct CopiedSet {
    name: String,
    layouts: Vec<Layout>,
    shards: Vec<Tensor>,
}

impl CopiedSet {
    pub fn as_set(&self) -> TensorSet<'_> {
        let shards = self.shards.iter().map(Tensor::shallow_clone).collect();
        TensorSet { name: self.name.clone(), layouts: &self.layouts, shards }
    }
}

/// The files that a rank wrote, with their checksums.
pub type Sums = Vec<(String, Sum)>;

/// A directory that ranks write, before its manifest.
#[derive(Debug, Clone)]
pub struct Staged {
    path: PathBuf,
    temporary: PathBuf,
}

impl Staged {
    /// Makes the directory under its temporary name. All ranks call it together.
    pub fn begin(comm: &dyn Comm, path: &Path) -> Result<Self> {
        let staged = Self { path: path.into(), temporary: path.with_extension("tmp") };
        let parent = path.parent().unwrap_or(Path::new("."));
        let begun = if comm.rank() == 0 { begin(parent, &staged.temporary) } else { Ok(()) };
        agree(comm, begun).with_context(|| staged.doing())?;
        Ok(staged)
    }

    /// The directory while it is incomplete.
    pub fn dir(&self) -> &Path {
        &self.temporary
    }

    /// Writes the files of this rank among `world` in float32, and returns their checksums.
    pub fn write(&self, (rank, world): (usize, usize), sets: &[TensorSet]) -> Result<Sums> {
        let (dir, mut sums) = (&self.temporary, Vec::new());
        for (number, set) in sets.iter().enumerate() {
            if number == 1 {
                failpoint("mid-checkpoint");
            }
            if number > 0 {
                failpoint("between-files");
            }
            let file = set_file(&set.name, rank, world);
            let tensors = of_shards(set.layouts, (rank, world), &set.shards);
            let written = write_file(&dir.join(&file), tensors, Kind::Float);
            let apart = written.is_err() && !dir.exists();
            let note = || format!("{} is missing: all ranks must share a file system", dir.display());
            let sum = if apart { written.with_context(note)? } else { written? };
            sums.push((file, sum));
        }
        Ok(sums)
    }

    /// Flushes all files to disk before it writes the manifest, and the manifest before it renames the directory. All ranks call it
    /// together with what they wrote. When one rank fails, all of them fail with its error and leave nothing behind.
    pub fn end(&self, comm: &dyn Comm, own: Result<Sums>) -> Result<()> {
        let root = comm.rank() == 0;
        // From here on only rank 0 writes.
        let written = exchange(comm, own).and_then(|sums| {
            let files = sums.into_iter().flatten().collect();
            let ended = if root { end(comm.world(), &self.path, &self.temporary, files) } else { Ok(()) };
            if root && ended.is_err() {
                clear(&self.temporary);
            }
            agree(comm, ended)
        });
        if root && written.is_err() {
            clear(&self.temporary);
        }
        written.with_context(|| self.doing())
    }

    fn doing(&self) -> String {
        format!("saving {}", self.path.display())
    }
}

/// Makes the empty directory, and removes temporary ones that interrupted runs left. Other files are not the run's.
fn begin(parent: &Path, temporary: &Path) -> Result<()> {
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    for entry in fs::read_dir(parent).with_context(|| format!("listing {}", parent.display()))? {
        let left = entry.with_context(|| format!("listing {}", parent.display()))?.path();
        if left.file_name().and_then(|name| name.to_str()).is_some_and(is_leftover) {
            remove_tree(&left)?;
        }
    }
    fs::create_dir(temporary).with_context(|| format!("making {}", temporary.display()))
}

/// Frees the room of an incomplete checkpoint. Ignores its own error, because the first error is the one to report.
fn clear(temporary: &Path) {
    let _ = fs::remove_dir_all(temporary);
}

/// Writes the manifest and renames the directory.
fn end(world: usize, path: &Path, temporary: &Path, mut files: BTreeMap<String, Sum>) -> Result<()> {
    for (name, sum) in &files {
        let size = fs::metadata(temporary.join(name)).map(|metadata| metadata.len());
        ensure!(
            size.is_ok_and(|size| size == sum.bytes),
            "{}: rank 0 does not find a file that another rank wrote: all ranks must share a file system",
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

/// Removes a checkpoint, if it exists. Renames it first, so that a partly removed one is never mistaken for a
/// checkpoint.
pub fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let aside = path.with_extension("old.tmp");
    fs::rename(path, &aside).with_context(|| format!("renaming {} to remove it", path.display()))?;
    failpoint("removing-old");
    remove_tree(&aside)
}

/// Removes a directory that is no checkpoint. On NFS a file that a program has open keeps its directory; a later save tries again.
fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy) => {
            terminal::warn(&format!("warning: a program has files open in {}, which is removed later", path.display()));
            Ok(())
        }
        removed => removed.with_context(|| format!("removing {}", path.display())),
    }
}
