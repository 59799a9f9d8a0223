//! An index as a folder: its files, and `index.json`, which describes them and the sources that the index was made of.
//!
//! One process makes it, in another folder that is renamed when it is whole and on disk. Others wait for a lock. The
//! checksums of its files show damage.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::files::{self, SMALL};
use nestor_plugin::mapped::Mapped;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The file that describes the others.
const ABOUT: &str = "index.json";

/// The folder of an index.
#[derive(Debug, Clone, Copy)]
pub struct Folder<'a> {
    /// The folder.
    pub path: &'a Path,
    /// Names of the files in it, beside `index.json`.
    pub files: &'static [&'static str],
    /// Another version has other files, or reads its sources in another way.
    pub version: u32,
    /// The user's way to a new index, for messages.
    pub remedy: &'static str,
    /// The user's way to another folder, for messages: "by the key `index`".
    pub elsewhere: &'static str,
}

/// The contents of `index.json`.
#[derive(Deserialize, Serialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    about: T,
}

/// The description in a folder.
#[derive(Debug)]
pub enum About<T> {
    /// There is none.
    Missing,
    /// It is of this other version.
    Other(u64),
    /// It is of the folder's version.
    Own(T),
}

impl Folder<'_> {
    /// Returns the beginning of a message about damage: the folder, and the way to a new index.
    pub fn damaged(&self) -> String {
        format!("{}: {}", self.path.display(), self.remedy)
    }

    /// Returns true if there is a folder, or a process makes one.
    pub fn exists(&self) -> bool {
        self.path.exists() || self.beside(".lock").exists()
    }

    /// Locks the folder for reading. Many processes hold this lock, or one makes the index.
    ///
    /// # Errors
    /// A lock that the system refuses. Where the file system is read-only there is none: an index that somebody else made
    /// can still be read.
    pub fn shared(&self) -> Result<Lock> {
        let path = self.beside(".lock");
        match File::options().create(true).append(true).open(&path) {
            Ok(file) => Ok(Lock(Some(lock(file, FlockArg::LockShared, &path)?))),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                Ok(Lock(None))
            }
            Err(error) => Err(error).with_context(|| format!("{}: cannot lock", path.display())),
        }
    }

    /// Locks the folder for [`Folder::write`]. The index may be another one afterwards: another process may have been first.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn exclusive(&self, shared: Lock) -> Result<Lock> {
        let path = self.beside(".lock");
        let Some(held) = shared.0 else {
            bail!("{}: cannot make an index in this folder; give another {}", self.path.display(), self.elsewhere)
        };
        // Two processes that both wait with a shared lock would wait for each other.
        let file = held.unlock().map_err(|(_, error)| error).with_context(|| path.display().to_string())?;
        Ok(Lock(Some(lock(file, FlockArg::LockExclusive, &path)?)))
    }

    /// Makes the folder that the index is to be in, so that [`Folder::shared`] has a place for its lock.
    pub fn make_room(&self) {
        if let Some(parent) = self.path.parent() {
            // If this fails, so does the lock.
            let _ = fs::create_dir_all(parent);
        }
    }

    /// Reads the description.
    ///
    /// # Errors
    /// A file that cannot be read or is no description.
    pub fn about<T: DeserializeOwned>(&self) -> Result<About<T>> {
        let bytes = match files::read(&self.path.join(ABOUT), SMALL) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(About::Missing),
            bytes => bytes.with_context(|| self.path.join(ABOUT).display().to_string())?,
        };
        let damaged = || format!("{}: {ABOUT} is damaged", self.damaged());
        let about: serde_json::Value = serde_json::from_slice(&bytes).with_context(damaged)?;
        match about["version"].as_u64() {
            Some(version) if version != u64::from(self.version) => Ok(About::Other(version)),
            _ => Ok(About::Own(serde_json::from_value::<Versioned<T>>(about).with_context(damaged)?.about)),
        }
    }

    /// Maps a file after a check that it has the bytes that were written.
    ///
    /// # Errors
    /// A file of another length or checksum.
    pub fn map(&self, name: &str, sum: Sum) -> Result<Mapped> {
        let bytes = Mapped::open(&self.path.join(name)).with_context(|| self.damaged())?;
        let found = bytes.len() as u64;
        ensure!(found == sum.bytes, "{}: {name} has {found} bytes, {} were written", self.damaged(), sum.bytes);
        ensure!(crc32fast::hash(&bytes) == sum.crc32, "{}: {name} was altered", self.damaged());
        Ok(bytes)
    }

    /// Makes the index: `make` writes the files into the folder that it gets, and returns the description. The new index takes
    /// the place of an old one at the end. The caller holds the exclusive lock.
    ///
    /// # Errors
    /// Those of `make`, a folder with other things than an index, and faults of the disk. The old index then stays.
    pub fn write<T: Serialize>(&self, make: impl FnOnce(&Path) -> Result<T>) -> Result<()> {
        let place =
            || format!("{}: cannot make the index here; give another folder {}", self.path.display(), self.elsewhere);
        let partial = self.beside(".partial");
        self.replaceable(self.path)?;
        self.replaceable(&partial)?;
        if partial.exists() {
            fs::remove_dir_all(&partial).with_context(place)?;
        }
        fs::create_dir_all(&partial).with_context(place)?;
        let made = make(&partial).and_then(|about| {
            let text = serde_json::to_string_pretty(&Versioned { version: self.version, about })?;
            let mut file = Summed::create(&partial.join(ABOUT))?;
            file.write_all(text.as_bytes()).context(ABOUT)?;
            file.finish().context(ABOUT)?;
            if self.path.exists() {
                fs::remove_dir_all(self.path).with_context(place)?;
            }
            fs::rename(&partial, self.path).with_context(place)
        });
        if made.is_err() {
            // The fault that came first is the one to report.
            let _ = fs::remove_dir_all(&partial);
        }
        made
    }

    /// Refuses a folder with other things than an index, which would be lost.
    fn replaceable(&self, folder: &Path) -> Result<()> {
        if !folder.exists() {
            return Ok(());
        }
        for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
            let path = entry.with_context(|| folder.display().to_string())?.path();
            let ours = self.files.iter().chain(&[ABOUT]).any(|name| path == folder.join(name));
            let elsewhere = self.elsewhere;
            ensure!(ours, "{} is no part of an index: give a folder of its own {elsewhere}", path.display());
        }
        Ok(())
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(suffix);
        path.into()
    }
}

/// The lock of a folder, until it is dropped. None where the file system is read-only.
#[derive(Debug)]
pub struct Lock(Option<Flock<File>>);

fn lock(mut file: File, kind: FlockArg, path: &Path) -> Result<Flock<File>> {
    loop {
        match Flock::lock(file, kind) {
            Ok(lock) => return Ok(lock),
            Err((back, Errno::EINTR)) => file = back,
            Err((_, error)) => return Err(error).with_context(|| format!("{}: cannot lock", path.display())),
        }
    }
}

/// A file that an index was made of.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Source {
    /// Size in bytes.
    pub bytes: u64,
    /// Seconds and nanoseconds of its last change.
    pub modified: (u64, u32),
    /// In hex.
    pub sha256: String,
}

impl Source {
    /// Reads a file.
    pub fn of(path: &Path) -> Result<Self> {
        // Size and time are those before the reading: a change in the meantime makes the index stale.
        let (bytes, modified) = Self::size_and_time(path)?;
        Ok(Self { bytes, modified, sha256: sha256(path)? })
    }

    /// Returns size and time of change.
    pub fn size_and_time(path: &Path) -> Result<(u64, (u64, u32))> {
        let about = fs::metadata(path).with_context(|| path.display().to_string())?;
        let time = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok((about.len(), (time.as_secs(), time.subsec_nanos())))
    }

    /// Compares size and time of change. A file of another time, such as a copy, is read to compare its SHA-256.
    pub fn is(&self, path: &Path) -> Result<bool> {
        let (bytes, modified) = Self::size_and_time(path)?;
        Ok(bytes == self.bytes && (modified == self.modified || sha256(path)? == self.sha256))
    }
}

/// Returns the SHA-256 of a file, in hex.
fn sha256(path: &Path) -> Result<String> {
    let mut file = files::open(path).with_context(|| path.display().to_string())?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).with_context(|| path.display().to_string())? {
            0 => return Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            count => digest.update(&buffer[..count]),
        }
    }
}

/// Length and checksum of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub struct Sum {
    /// Length.
    pub bytes: u64,
    /// CRC-32, as in zip files.
    pub crc32: u32,
}

/// A file that is being written, with its checksum.
#[derive(Debug)]
pub struct Summed {
    file: File,
    bytes: u64,
    crc: crc32fast::Hasher,
}

impl Summed {
    /// Makes the file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self { file, bytes: 0, crc: crc32fast::Hasher::new() })
    }

    /// Waits until the file is on disk.
    pub fn finish(self) -> io::Result<Sum> {
        self.file.sync_all()?;
        Ok(Sum { bytes: self.bytes, crc32: self.crc.finalize() })
    }
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
