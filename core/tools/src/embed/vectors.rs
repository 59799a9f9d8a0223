//! The file of a corpus's vectors, which `nestor-retrieve` maps into memory: a safetensors file with one tensor `vectors`
//! (rows, dim) in float16 and notes that name model, prefixes and corpus.
//!
//! It is written as `vectors.partial`, which an interrupted command continues, and renamed when it is complete. The file
//! `places` beside it holds the place of each passage in the corpus.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nestor_plugin::files;
use serde_json::json;
use tch::{Kind, Tensor};

use super::corpus::Place;
use crate::files::flush;
use crate::input_error;
use crate::model::stored::to_bytes;

/// The complete file.
pub const FILE: &str = "vectors.safetensors";
const PARTIAL: &str = "vectors.partial";
const PLACES: &str = "places";
const PLACES_PARTIAL: &str = "places.partial";
/// The note with the CRC-32 of the places.
pub const PLACES_SUM: &str = "places_crc32";

/// Bytes of a number.
const WIDTH: u64 = 2;

/// The contents of a file, which its header states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub rows: usize,
    pub dim: i64,
    /// Notes in the header, by name.
    pub notes: BTreeMap<String, String>,
}

impl Contents {
    /// The bytes before the vectors: the length of the JSON as u64, and the JSON, whose end is padded by spaces.
    fn header(&self) -> Vec<u8> {
        let Self { rows, dim, notes } = self;
        let end = *rows as u64 * self.row_bytes();
        let vectors = json!({ "dtype": "F16", "shape": [rows, dim], "data_offsets": [0, end] });
        let mut text = json!({ "__metadata__": notes, "vectors": vectors }).to_string().into_bytes();
        text.resize((text.len() + 8).next_multiple_of(64) - 8, b' ');
        [&(text.len() as u64).to_le_bytes()[..], &text].concat()
    }

    fn row_bytes(&self) -> u64 {
        self.dim as u64 * WIDTH
    }
}

/// A file that is being written, row by row.
#[derive(Debug)]
pub struct Vectors {
    dir: PathBuf,
    file: File,
    contents: Contents,
    /// Rows in the file.
    pub rows: usize,
    bytes: Vec<u8>,
    places: BufWriter<File>,
    places_sum: crc32fast::Hasher,
}

impl Vectors {
    /// True if the folder already holds the complete file with these contents.
    ///
    /// # Errors
    /// If the folder holds other vectors.
    pub fn are_complete(dir: &Path, contents: &Contents) -> Result<bool> {
        let path = dir.join(FILE);
        let header = contents.header();
        let mut found = Vec::new();
        let mut file = match files::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
        };
        (&mut file).take(header.len() as u64).read_to_end(&mut found)?;
        let size = file.metadata()?.len();
        if found != header || size != header.len() as u64 + contents.rows as u64 * contents.row_bytes() {
            return Err(input_error!(
                "{}: holds vectors of another encoder, corpus, prefix or length; choose another folder or remove the file",
                path.display()
            ));
        }
        Ok(true)
    }

    /// Opens the partial file in a folder, which is made if it is missing. A file with the same header keeps its rows, in
    /// whole windows of `window` rows, so that a resumed command forms the same batches. Any other starts anew.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn open(dir: &Path, contents: Contents, window: usize) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let path = dir.join(PARTIAL);
        let context = || format!("cannot write {}", path.display());
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.with_context(context)?;
        let header = contents.header();
        let mut found = Vec::new();
        (&mut file).take(header.len() as u64).read_to_end(&mut found).with_context(context)?;
        let size = file.metadata().with_context(context)?.len();
        let mut rows = 0;
        if found == header {
            rows = ((size - header.len() as u64) / contents.row_bytes()) as usize;
            rows = (rows / window * window).min(contents.rows);
        } else {
            file.set_len(0).with_context(context)?;
            file.rewind().with_context(context)?;
            file.write_all(&header).with_context(context)?;
        }
        let end = header.len() as u64 + rows as u64 * contents.row_bytes();
        file.set_len(end).with_context(context)?;
        file.seek(SeekFrom::Start(end)).with_context(context)?;
        let places = dir.join(PLACES_PARTIAL);
        let places =
            BufWriter::new(File::create(&places).with_context(|| format!("cannot write {}", places.display()))?);
        let places_sum = crc32fast::Hasher::new();
        Ok(Self { dir: dir.into(), file, contents, rows, bytes: Vec::new(), places, places_sum })
    }

    /// Rows that the file lacks.
    pub fn missing(&self) -> usize {
        self.contents.rows - self.rows
    }

    /// Adds the places of further passages, from the first on.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn add_places(&mut self, places: &[Place]) -> Result<()> {
        for place in places {
            self.places_sum.update(&place.bytes());
            let written = self.places.write_all(&place.bytes());
            written.with_context(|| format!("cannot write {}", self.dir.join(PLACES_PARTIAL).display()))?;
        }
        Ok(())
    }

    /// Appends vectors (rows, dim).
    ///
    /// # Errors
    /// If the file cannot be written, or a vector has a number that float16 lacks; the message has the passage's line.
    pub fn append(&mut self, vectors: &Tensor) -> Result<()> {
        let (rows, dim) = vectors.size2()?;
        ensure!(dim == self.contents.dim, "vectors of {dim} numbers, not of {}", self.contents.dim);
        let half = vectors.f_to_kind(Kind::Half)?;
        let is_finite = Vec::<bool>::try_from(half.f_isfinite()?.f_all_dim(1, false)?)?;
        if let Some(row) = is_finite.iter().position(|finite| !finite) {
            return Err(input_error!(
                "line {} of the corpus: the encoder gives a vector with infinite numbers or NaN; use --dtype float32, or fetch \
                 the encoder again",
                self.rows + row + 1
            ));
        }
        to_bytes(&half.f_flatten(0, -1)?, Kind::Half, &mut self.bytes);
        let written = self.file.write_all(&self.bytes);
        written.with_context(|| format!("cannot write {}", self.dir.join(PARTIAL).display()))?;
        self.rows += rows as usize;
        Ok(())
    }

    /// Gives the complete files their names, the vectors last.
    ///
    /// # Errors
    /// If the corpus changed since its sums were taken, or the files cannot be flushed or renamed.
    pub fn finish(self) -> Result<()> {
        let Self { dir, file, contents, rows, places, places_sum, .. } = self;
        let sum = format!("{:08x}", places_sum.finalize());
        if rows != contents.rows || contents.notes.get(PLACES_SUM) != Some(&sum) {
            return Err(input_error!("the corpus changed while it was read; run the command again"));
        }
        let places = places.into_inner().map_err(|error| error.into_error()).context("cannot write the places")?;
        for (file, partial, name) in [(places, PLACES_PARTIAL, PLACES), (file, PARTIAL, FILE)] {
            let (partial, path) = (dir.join(partial), dir.join(name));
            file.sync_all().with_context(|| format!("flushing {}", partial.display()))?;
            std::fs::rename(&partial, &path).with_context(|| format!("renaming {}", partial.display()))?;
        }
        flush(&dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_all_lengths_are_whole() {
        for length in 0..130 {
            let notes = [("corpus".to_string(), "x".repeat(length))].into();
            let header = Contents { rows: 7, dim: 3, notes }.header();
            let file = [&header[..], &[0; 7 * 3 * 2]].concat();
            let read = safetensors::SafeTensors::deserialize(&file).expect("a safetensors file");
            assert_eq!((header.len() % 64, read.tensor("vectors").expect("vectors").shape()), (0, &[7, 3][..]));
        }
    }
}
