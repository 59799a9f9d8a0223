//! The passages of a corpus: JSON lines in the form of Search-R1, `{"id": "0", "contents": "\"Title\"\ntext"}`. Lines of
//! spaces are passed over.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::files;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::input_error;

/// The longest line in bytes. A passage of Wikipedia has about 700.
const LONGEST: u64 = 64 << 20;

/// The sums by which a reader finds that a corpus changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusSum {
    pub passages: usize,
    pub bytes: u64,
    /// CRC-32 of the passages' places, eight hexadecimal digits. The places hold the CRC-32 of every line.
    pub places: String,
}

/// A passage and its place.
#[derive(Debug)]
pub struct Passage {
    pub contents: String,
    pub place: Place,
}

/// The place of a passage's line in the corpus, without the line's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    offset: u64,
    length: u32,
    crc: u32,
}

impl Place {
    /// The place in a file of places: offset, length and CRC-32, little-endian.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }
}

/// A corpus that is read from its beginning to its end.
#[derive(Debug)]
pub struct Corpus {
    path: PathBuf,
    file: BufReader<File>,
    /// Lines read, and their bytes.
    line: usize,
    offset: u64,
    buffer: Vec<u8>,
}

/// A line; other fields are ignored.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "id")]
    _id: IgnoredAny,
    contents: String,
}

impl Corpus {
    /// Opens the file.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = files::open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => input_error!("{}: no such file; a corpus is a file of JSON lines", path.display()),
            ErrorKind::InvalidInput => input_error!("{}: {error}; a corpus is a file of JSON lines", path.display()),
            _ => anyhow::Error::new(error).context(format!("cannot open {}", path.display())),
        })?;
        let file = BufReader::with_capacity(1 << 20, file);
        Ok(Self { path: path.into(), file, line: 0, offset: 0, buffer: Vec::new() })
    }

    /// Reads a whole file for its sums.
    ///
    /// # Errors
    /// If the file cannot be read or holds no passage.
    pub fn sum(path: &Path) -> Result<CorpusSum> {
        let mut corpus = Self::open(path)?;
        let (mut hasher, mut passages) = (crc32fast::Hasher::new(), 0);
        while let Some(place) = corpus.read_line()? {
            hasher.update(&place.bytes());
            passages += 1;
        }
        if passages == 0 {
            return Err(input_error!("{}: the corpus is empty; it needs one JSON object on each line", path.display()));
        }
        Ok(CorpusSum { passages, bytes: corpus.offset, places: format!("{:08x}", hasher.finalize()) })
    }

    /// The next `count` passages, fewer at the end.
    ///
    /// # Errors
    /// A line that is no JSON object with `id` and a text `contents`.
    pub fn next(&mut self, count: usize) -> Result<Vec<Passage>> {
        let mut passages = Vec::with_capacity(count);
        while passages.len() < count {
            let Some(place) = self.read_line()? else { break };
            let Line { contents, .. } = serde_json::from_slice(self.buffer.trim_ascii_end()).map_err(|error| {
                input_error!(
                    "{}, line {}: {error}; a line is {{\"id\": \"…\", \"contents\": \"\\\"Title\\\"\\ntext\"}}",
                    self.path.display(),
                    self.line
                )
            })?;
            passages.push(Passage { contents, place });
        }
        Ok(passages)
    }

    /// The places of the next `count` passages, whose text is not needed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn skip(&mut self, count: usize) -> Result<Vec<Place>> {
        (0..count).map_while(|_| self.read_line().transpose()).collect()
    }

    /// Reads the next line with a passage into the buffer; none at the end of the file.
    fn read_line(&mut self) -> Result<Option<Place>> {
        loop {
            self.buffer.clear();
            let context = || format!("cannot read {}", self.path.display());
            let read = (&mut self.file).take(LONGEST).read_until(b'\n', &mut self.buffer).with_context(context)?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            if read as u64 == LONGEST {
                return Err(input_error!(
                    "{}, line {}: longer than {} MiB; a corpus has one JSON object on each line",
                    self.path.display(),
                    self.line,
                    LONGEST >> 20
                ));
            }
            let line = self.buffer.trim_ascii_end();
            let place = Place { offset: self.offset, length: line.len() as u32, crc: crc32fast::hash(line) };
            self.offset += read as u64;
            if place.length > 0 {
                return Ok(Some(place));
            }
        }
    }
}
