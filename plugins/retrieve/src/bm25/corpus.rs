//! A corpus in a file: a JSON object per line with `id` and `contents`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nestor_plugin::files;
use nestor_plugin::mapped::Mapped;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::Passage;

/// A longer line is a sign that the file has no lines.
const LONGEST: u64 = 64 << 20;

/// A line of a corpus. Further fields are ignored.
#[derive(Deserialize)]
#[serde(expecting = "an object with `id` and `contents`")]
pub struct Line {
    pub id: Id,
    pub contents: String,
}

/// The id of a passage: a text, or a number, which is taken as its digits.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`id` is neither a text nor a whole number")]
pub enum Id {
    Text(String),
    Number(i64),
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// A line that is no JSON, or lacks a field. The message wants file and line before it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| {
            // serde counts the lines of its input, which is one line.
            let cause = error.to_string().replace(" at line 1 column ", " at column ");
            anyhow!("no passage such as {{\"id\": \"7\", \"contents\": \"\\\"Title\\\"\\ntext\"}}: {cause}")
        })
    }

    pub fn id(&self) -> String {
        match &self.id {
            Id::Text(id) => id.clone(),
            Id::Number(id) => id.to_string(),
        }
    }
}

/// The place of a passage in the corpus, and the checksum of its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub offset: u64,
    pub length: u32,
    pub crc: u32,
}

impl Place {
    pub const BYTES: usize = 16;

    pub fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, crc @ ..] = *bytes;
        Self {
            offset: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            length: u32::from_le_bytes([i, j, k, l]),
            crc: u32::from_le_bytes(crc),
        }
    }
}

/// A corpus that is open, and the places of its passages.
pub struct Corpus {
    path: PathBuf,
    file: File,
    places: Mapped,
}

impl Corpus {
    /// Opens a corpus with the table of its passages' places.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn open(path: &Path, places: &Path) -> Result<Self> {
        let file = files::open(path).with_context(|| path.display().to_string())?;
        Ok(Self { path: path.to_owned(), file, places: Mapped::open(places)? })
    }

    pub fn passages(&self) -> usize {
        self.places.len() / Place::BYTES
    }

    /// Reads a passage. Its line is read anew, not mapped, so that a corpus cut in the meantime is an error and not a crash.
    ///
    /// # Errors
    /// A corpus that changed since it was opened.
    pub fn passage(&self, number: u32) -> Result<Passage> {
        let (places, _) = self.places.as_chunks::<{ Place::BYTES }>();
        let changed = || {
            format!(
                "{}: the line of passage {number} has changed since the corpus was opened: start again",
                self.path.display()
            )
        };
        let place = Place::read(places.get(number as usize).with_context(changed)?);
        let mut line = vec![0; place.length as usize];
        self.file.read_exact_at(&mut line, place.offset).with_context(changed)?;
        ensure!(crc32fast::hash(&line) == place.crc, changed());
        let line = Line::parse(&line).with_context(changed)?;
        Ok(Passage { id: line.id(), contents: line.contents, score: 0.0 })
    }
}

/// Some lines of a corpus, in order.
pub struct Lines {
    /// Number of the first passage.
    pub first: u32,
    bytes: Vec<u8>,
    lines: Vec<(u64, u64, Range<usize>)>,
}

impl Lines {
    /// Each line: its number from 1, its offset in the file, its bytes without the end of the line.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        self.lines.iter().map(|(number, offset, range)| (*number, *offset, &self.bytes[range.clone()]))
    }

    pub fn count(&self) -> usize {
        self.lines.len()
    }
}

/// Reads a corpus from start to end.
pub struct Reader {
    file: BufReader<File>,
    digest: Sha256,
    line: u64,
    offset: u64,
    passages: u64,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Self> {
        let file = files::open(path).with_context(|| path.display().to_string())?;
        ensure!(file.metadata()?.is_file(), "{}: no file of lines", path.display());
        let file = BufReader::with_capacity(1 << 20, file);
        Ok(Self { file, digest: Sha256::new(), line: 0, offset: 0, passages: 0 })
    }

    /// Reads up to `count` passages; none at the end. Lines of spaces are passed over.
    ///
    /// # Errors
    /// Those of reading, a line over 64 MiB, and too many passages. The message wants the file before it.
    pub fn next(&mut self, count: usize) -> Result<Option<Lines>> {
        let first = u32::try_from(self.passages).context("a corpus holds up to 4,294,967,295 passages")?;
        let mut lines = Lines { first, bytes: Vec::new(), lines: Vec::with_capacity(count) };
        while lines.lines.len() < count {
            let start = lines.bytes.len();
            self.line += 1;
            let read = (&mut self.file).take(LONGEST).read_until(b'\n', &mut lines.bytes);
            let read = read.with_context(|| format!("line {}: cannot be read", self.line))?;
            if read == 0 {
                break;
            }
            if read as u64 == LONGEST {
                bail!("line {} has over 64 MiB: give a file with a passage per line", self.line);
            }
            self.digest.update(&lines.bytes[start..]);
            let end = start + lines.bytes[start..].trim_ascii_end().len();
            if end > start {
                lines.lines.push((self.line, self.offset, start..end));
            }
            self.offset += read as u64;
        }
        self.passages += lines.lines.len() as u64;
        Ok((!lines.lines.is_empty()).then_some(lines))
    }

    /// The SHA-256 of what was read, in hex.
    pub fn sha256(self) -> String {
        self.digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
