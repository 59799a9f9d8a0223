//! The manifest of a checkpoint: its files with their checksums, and a checksum of that list.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::files::{self, SMALL};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::files::{Sum, SummedFile, flush, hex, sum};
use crate::input_error;
use crate::ranks::{Comm, balance, exchange, from_root};
use crate::version::{COMMIT, VERSION};

/// The file written last: a directory that has it is complete.
pub const MANIFEST: &str = "manifest.json";

/// The contents of `manifest.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Number of ranks that wrote the tensors.
    pub world: usize,
    /// Size and SHA-256 of every other file.
    pub files: BTreeMap<String, Sum>,
    /// The program that wrote it; older checkpoints do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,
    /// SHA-256 of the fields above, as the JSON list `[world,{name:{"bytes":…,"sha256":…}},{"nestor":…,"commit":…}]` without
    /// spaces. Without a writer the list ends after the files.
    sha256: String,
}

/// A build of Nestor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writer {
    /// The version, such as `0.1.0`.
    pub nestor: String,
    /// The full hash of the commit that it was built from, if the build knew it.
    pub commit: Option<String>,
}

impl Manifest {
    /// The manifest of a checkpoint that this program writes.
    pub fn new(world: usize, files: BTreeMap<String, Sum>) -> Result<Self> {
        let writer = Writer { nestor: VERSION.to_string(), commit: COMMIT.map(str::to_string) };
        Self::summed(world, files, Some(writer))
    }

    fn summed(world: usize, files: BTreeMap<String, Sum>, writer: Option<Writer>) -> Result<Self> {
        let fields = match &writer {
            Some(writer) => serde_json::to_vec(&(world, &files, writer)),
            None => serde_json::to_vec(&(world, &files)),
        };
        let mut hasher = Sha256::new();
        hasher.update(fields?);
        Ok(Self { world, files, writer, sha256: hex(hasher) })
    }

    /// Reads the manifest of a checkpoint and refuses one that was changed in any character.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let damaged = |why: &str| input_error!("{}: damaged ({why})", path.display());
        let bytes = files::read(&path, SMALL).with_context(|| format!("reading {}", path.display()))?;
        let found: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(&error.to_string()))?;
        if found.files.keys().any(|name| name.contains(['/', '\\']) || name.starts_with('.')) {
            return Err(damaged("it names a path outside its directory"));
        }
        let again = Self::summed(found.world, found.files, found.writer)?;
        if again.sha256 != found.sha256 || again.text()? != bytes {
            return Err(damaged("it does not have the checksum that was written with it"));
        }
        Ok(again)
    }

    /// Writes the manifest and flushes it and its directory. The other files must be on disk already.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let mut file = SummedFile::create(&dir.join(MANIFEST))?;
        file.write(self.text()?)?;
        file.finish()?;
        flush(dir)
    }

    fn text(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The files of a set of tensors, `NAME.safetensors` or one per rank; empty where the checkpoint has no such set.
    pub fn set(&self, dir: &Path, name: &str) -> Vec<PathBuf> {
        let files = (0..self.world).map(|rank| set_file(name, rank, self.world));
        let files: Vec<String> = files.collect();
        let there = files.iter().any(|file| self.files.contains_key(file));
        if there { files.iter().map(|file| dir.join(file)).collect() } else { Vec::new() }
    }

    /// Refuses a missing or changed file.
    pub fn check(&self, dir: &Path, name: &str) -> Result<()> {
        let path = dir.join(name);
        let want = &self.files[name];
        let size = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(input_error!("{}: missing, though {MANIFEST} names it", path.display()));
            }
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        if size != want.bytes || sum(&path)? != *want {
            return Err(input_error!(
                "{}: damaged: it does not have the checksum that was written with it",
                path.display()
            ));
        }
        Ok(())
    }
}

/// Name of the file of a rank's shards of a set of tensors.
pub fn set_file(name: &str, rank: usize, world: usize) -> String {
    match world {
        1 => format!("{name}.safetensors"),
        _ => format!("{name}-{:05}-of-{world:05}.safetensors", rank + 1),
    }
}

/// Checks every file of a checkpoint against its manifest, without the help of other ranks.
pub fn verify(dir: &Path) -> Result<Manifest> {
    let manifest = Manifest::read(dir)?;
    manifest.files.keys().try_for_each(|name| manifest.check(dir, name))?;
    Ok(manifest)
}

/// Describes the damage of a checkpoint; none where it is sound. The ranks share the files and all get the same answer.
pub fn damage(comm: &dyn Comm, dir: &Path) -> Result<Option<String>> {
    let read = || Ok(Manifest::read(dir).map_err(|error| format!("{error:#}")));
    let manifest: Result<Manifest, String> = from_root(comm, read)?;
    let own = manifest.and_then(|manifest| {
        let files: Vec<&String> = manifest.files.keys().collect();
        let shares = balance(&files, comm.world(), |name| manifest.files[*name].bytes as usize);
        let mut own = shares[comm.rank()].iter();
        own.try_for_each(|name| manifest.check(dir, name)).map_err(|error| format!("{error:#}"))
    });
    Ok(exchange(comm, Ok(own.err()))?.into_iter().flatten().next())
}
