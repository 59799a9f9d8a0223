//! The index of a corpus as a folder: `search.bin`, `places.bin`, and `index.json`, which describes the two and the corpus.
//!
//! The first process that needs it makes it, in another folder that is renamed when it is whole. Others wait for a lock.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail, ensure};
use nestor_lucene::Index;
use nestor_plugin::files::{self, SMALL};
use nestor_plugin::mapped::Mapped;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::build::build;
use super::corpus::{Corpus, sha256};

const SEARCH: &str = "search.bin";
const PLACES: &str = "places.bin";
const ABOUT: &str = "index.json";
/// Another version has other files, or reads a corpus in another way.
const VERSION: u32 = 1;

/// The index of a smaller corpus is made within seconds.
const SMALL_MIB: u64 = 64;

/// The contents of `index.json`.
#[derive(Debug, Deserialize, Serialize)]
struct About {
    version: u32,
    corpus: Source,
    passages: u32,
    search: Sum,
    places: Sum,
}

/// The corpus that an index belongs to.
#[derive(Debug, Deserialize, Serialize)]
struct Source {
    bytes: u64,
    /// Seconds and nanoseconds of its last change.
    modified: (u64, u32),
    sha256: String,
}

/// Length and checksum of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
struct Sum {
    bytes: u64,
    crc32: u32,
}

/// Opens the index in `folder`, or makes it.
///
/// # Errors
/// A corpus that cannot be indexed, a damaged index, and faults of the disk.
pub fn open(corpus: &Path, folder: &Path, threads: usize) -> Result<(Index, Corpus)> {
    fs::metadata(corpus)
        .with_context(|| format!("{}: cannot read the corpus; correct the key `corpus`", corpus.display()))?;
    let lock = Lock::shared(folder)?;
    if let Some(whole) = read(corpus, folder)? {
        return Ok(whole);
    }
    let _lock = lock.exclusive(folder)?;
    // Another process may have made it in the meantime.
    if let Some(whole) = read(corpus, folder)? {
        return Ok(whole);
    }
    write(corpus, folder, threads)?;
    let changed = || format!("{}: the corpus changed while its index was made: start again", corpus.display());
    read(corpus, folder)?.with_context(changed)
}

/// Reads the index of `corpus`; none if there is none, or one of another corpus or version.
fn read(corpus: &Path, folder: &Path) -> Result<Option<(Index, Corpus)>> {
    let about = match files::read(&folder.join(ABOUT), SMALL) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.with_context(|| folder.join(ABOUT).display().to_string())?,
    };
    let remedy = || format!("{}: remove this folder, and the next start makes the index again", folder.display());
    let about: serde_json::Value =
        serde_json::from_slice(&about).with_context(|| format!("{}: {ABOUT} is damaged", remedy()))?;
    if about["version"] != VERSION {
        return Ok(None);
    }
    let about: About = serde_json::from_value(about).with_context(|| format!("{}: {ABOUT} is damaged", remedy()))?;
    if !about.corpus.is(corpus)? {
        return Ok(None);
    }
    for (name, sum) in [(SEARCH, about.search), (PLACES, about.places)] {
        let bytes = Mapped::open(&folder.join(name)).with_context(remedy)?;
        let found = Sum { bytes: bytes.len() as u64, crc32: crc32fast::hash(&bytes) };
        ensure!(found.bytes == sum.bytes, "{}: {name} has {} bytes, {} were written", remedy(), found.bytes, sum.bytes);
        ensure!(found.crc32 == sum.crc32, "{}: {name} was altered", remedy());
    }
    let index = Index::open(&folder.join(SEARCH)).with_context(remedy)?;
    let corpus = Corpus::open(corpus, &folder.join(PLACES)).with_context(remedy)?;
    let counts = [index.documents() as usize, corpus.passages()];
    ensure!(counts == [about.passages as usize; 2], "{}: its files are of different indexes", remedy());
    Ok(Some((index, corpus)))
}

fn write(corpus: &Path, folder: &Path, threads: usize) -> Result<()> {
    let place = || format!("{}: cannot make the index here; give another folder by the key `index`", folder.display());
    let partial = beside(folder, ".partial");
    for folder in [folder, &partial] {
        if folder.exists() {
            replaceable(folder)?;
        }
    }
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(place)?;
    }
    fs::create_dir_all(&partial).with_context(place)?;
    announce(corpus)?;
    let made = make(corpus, &partial, threads);
    let made = made.and_then(|()| {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(place)?;
        }
        fs::rename(&partial, folder).with_context(place)
    });
    if made.is_err() {
        // The fault that came first is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

/// Says why nothing happens for a while.
fn announce(corpus: &Path) -> Result<()> {
    let mib = fs::metadata(corpus).with_context(|| corpus.display().to_string())?.len() >> 20;
    if mib > SMALL_MIB {
        eprintln!("making the index of {} ({mib} MiB), once", corpus.display());
    }
    Ok(())
}

fn make(corpus: &Path, folder: &Path, threads: usize) -> Result<()> {
    // Size and time are those before the reading: a change in the meantime makes the index stale.
    let (bytes, modified) = Source::size_and_time(corpus)?;
    let file = |name: &str| {
        let path = folder.join(name);
        File::create(&path).map(Summed::new).with_context(|| path.display().to_string())
    };
    let (mut search, mut places) = (file(SEARCH)?, file(PLACES)?);
    let indexed = build(corpus, threads, folder, &mut search, &mut places)?;
    let about = About {
        version: VERSION,
        corpus: Source { bytes, modified, sha256: indexed.sha256 },
        passages: indexed.passages,
        search: search.finish().context(SEARCH)?,
        places: places.finish().context(PLACES)?,
    };
    let path = folder.join(ABOUT);
    let mut file = File::create(&path).with_context(|| path.display().to_string())?;
    file.write_all(serde_json::to_string_pretty(&about)?.as_bytes()).context(ABOUT)?;
    file.sync_all().context(ABOUT)
}

/// Refuses a folder with other things than an index, which would be lost.
fn replaceable(folder: &Path) -> Result<()> {
    for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        let ours = [SEARCH, PLACES, ABOUT].iter().any(|name| path == folder.join(name));
        ensure!(ours, "{} is no part of an index: give a folder of its own by the key `index`", path.display());
    }
    Ok(())
}

fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

impl Source {
    fn size_and_time(path: &Path) -> Result<(u64, (u64, u32))> {
        let about = fs::metadata(path).with_context(|| path.display().to_string())?;
        let time = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok((about.len(), (time.as_secs(), time.subsec_nanos())))
    }

    /// Compares size and time of change. A file of another time, such as a copy, is read to compare its SHA-256.
    fn is(&self, path: &Path) -> Result<bool> {
        let (bytes, modified) = Self::size_and_time(path)?;
        Ok(bytes == self.bytes && (modified == self.modified || sha256(path)? == self.sha256))
    }
}

/// The lock of a folder: many processes read its index, or one makes it. None where the file system is read-only.
struct Lock(Option<Flock<File>>);

impl Lock {
    fn shared(folder: &Path) -> Result<Self> {
        let path = beside(folder, ".lock");
        if let Some(parent) = path.parent() {
            // If this fails, so does the lock.
            let _ = fs::create_dir_all(parent);
        }
        match File::options().create(true).append(true).open(&path) {
            Ok(file) => Ok(Self(Some(Self::take(file, FlockArg::LockShared, &path)?))),
            // An index that somebody else made can still be read.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                Ok(Self(None))
            }
            Err(error) => Err(error).with_context(|| format!("{}: cannot lock", path.display())),
        }
    }

    fn exclusive(self, folder: &Path) -> Result<Self> {
        let path = beside(folder, ".lock");
        let Some(lock) = self.0 else {
            bail!("{}: cannot make an index in this folder; give another by the key `index`", folder.display())
        };
        // Two processes that both wait with a shared lock would wait for each other.
        let file = lock.unlock().map_err(|(_, error)| error).with_context(|| path.display().to_string())?;
        Ok(Self(Some(Self::take(file, FlockArg::LockExclusive, &path)?)))
    }

    fn take(mut file: File, kind: FlockArg, path: &Path) -> Result<Flock<File>> {
        loop {
            match Flock::lock(file, kind) {
                Ok(lock) => return Ok(lock),
                Err((back, Errno::EINTR)) => file = back,
                Err((_, error)) => return Err(error).with_context(|| format!("{}: cannot lock", path.display())),
            }
        }
    }
}

/// A file that is being written, with its checksum.
struct Summed {
    file: File,
    bytes: u64,
    crc: crc32fast::Hasher,
}

impl Summed {
    fn new(file: File) -> Self {
        Self { file, bytes: 0, crc: crc32fast::Hasher::new() }
    }

    fn finish(self) -> io::Result<Sum> {
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
