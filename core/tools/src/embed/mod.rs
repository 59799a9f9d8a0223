//! `nestor embed`: the vectors of a corpus for dense retrieval, and the process that answers queries with theirs.

mod bert;
mod corpus;
mod encoder;
mod serve;
mod vectors;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nestor_host::lock::{Lock, LockKind};
use serde::Serialize;

pub use self::bert::{Bert, BertConfig};
pub use self::encoder::{Encoder, EncoderOptions};
pub use self::serve::serve;

use self::corpus::{Corpus, CorpusSum};
use self::vectors::{Contents, FILE, PLACES_SUM, Vectors};
use crate::progress::Progress;
use crate::terminal;

/// The lock of a folder in which vectors are made.
const LOCK: LockKind = LockKind { file: "embed.lock", option: "--out" };

/// Passages that are read, sorted by length and written at once. An interrupted command loses at most these.
const WINDOW: usize = 1024;

/// Options of `nestor embed`.
#[derive(Debug, Clone)]
pub struct EmbedOptions {
    pub encoder: EncoderOptions,
    /// Passages as JSON lines.
    pub corpus: PathBuf,
    /// The folder for the vectors.
    pub out: PathBuf,
    /// Text before each query; stored for whoever asks the vectors.
    pub query_prefix: String,
    /// Text before each passage.
    pub passage_prefix: String,
    /// Draw no progress line.
    pub quiet: bool,
}

/// The result of `nestor embed`.
#[derive(Debug, Clone, Serialize)]
pub struct Embedded {
    /// The file.
    pub vectors: PathBuf,
    pub rows: usize,
    pub dim: i64,
    /// Rows that an earlier command had written.
    pub kept: usize,
    pub seconds: f64,
}

impl Display for Embedded {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self { vectors, rows, dim, kept, seconds } = self;
        write!(f, "{}: {rows} vectors of {dim} numbers", vectors.display())?;
        match kept {
            0 => write!(f, ", {seconds:.1} s"),
            _ if kept == rows => write!(f, ", complete before"),
            _ => write!(f, ", {seconds:.1} s; an earlier command had made {kept}"),
        }
    }
}

/// Writes the vectors of a corpus. A folder that holds them already stays as it is.
///
/// # Errors
/// An encoder or a corpus that cannot be read, or a folder with other vectors.
pub fn embed(options: &EmbedOptions) -> Result<Embedded> {
    let begin = Instant::now();
    let encoder = Encoder::load(&options.encoder)?;
    let corpus = Corpus::sum(&options.corpus)?;
    let contents = contents(options, &encoder, &corpus);
    let (rows, dim) = (contents.rows, contents.dim);
    let mut kept = rows;
    let seconds = || begin.elapsed().as_secs_f64();
    let embedded = |kept| Embedded { vectors: options.out.join(FILE), rows, dim, kept, seconds: seconds() };
    let out = &options.out;
    if Vectors::are_complete(out, &contents)? {
        return Ok(embedded(kept));
    }
    std::fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    let _lock = Lock::take(out, LOCK, Duration::ZERO)?;
    // Another command may have ended just now.
    if !Vectors::are_complete(out, &contents)? {
        let mut vectors = Vectors::open(&options.out, contents, WINDOW)?;
        kept = vectors.rows;
        fill(&mut vectors, options, &encoder)?;
        vectors.finish()?;
    }
    Ok(embedded(kept))
}

/// Appends the vectors of the passages that are missing, and writes the places of all.
fn fill(vectors: &mut Vectors, options: &EmbedOptions, encoder: &Encoder) -> Result<()> {
    let progress = if options.quiet || !terminal::redraws() { Progress::hidden() } else { Progress::shown(1) };
    let phase = progress.phase("embed", "passages");
    progress.set_total(vectors.missing());
    let mut corpus = Corpus::open(&options.corpus)?;
    vectors.add_places(&corpus.skip(vectors.rows)?)?;
    loop {
        let passages = corpus.next(WINDOW)?;
        if passages.is_empty() {
            break;
        }
        let texts = passages.iter().map(|passage| format!("{}{}", options.passage_prefix, passage.contents)).collect();
        vectors.append(&encoder.encode(texts)?)?;
        vectors.add_places(&passages.iter().map(|passage| passage.place).collect::<Vec<_>>())?;
        progress.advance(passages.len(), 0);
    }
    drop(phase);
    progress.end();
    Ok(())
}

/// The contents of the file: all that a reader needs to refuse another encoder or a changed corpus.
fn contents(options: &EmbedOptions, encoder: &Encoder, corpus: &CorpusSum) -> Contents {
    let notes = [
        ("format", "nestor-dense-1".to_string()),
        ("model", options.encoder.model.display().to_string()),
        ("model_sum", encoder.sum.clone()),
        ("max_length", encoder.max_length.to_string()),
        ("query_prefix", options.query_prefix.clone()),
        ("passage_prefix", options.passage_prefix.clone()),
        ("corpus", options.corpus.display().to_string()),
        ("corpus_bytes", corpus.bytes.to_string()),
        (PLACES_SUM, corpus.places.clone()),
    ];
    let notes: BTreeMap<_, _> = notes.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    Contents { rows: corpus.passages, dim: encoder.dim(), notes }
}
