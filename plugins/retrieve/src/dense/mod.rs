//! Dense retrieval on this machine: vectors of `nestor embed`, and the passages whose vectors are nearest to a query's.

mod batcher;
pub mod bench;
mod block;
pub mod command;
mod encoder;
mod kmeans;
mod lists;
mod scan;
mod top;
mod vectors;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nestor_plugin::mapped::Mapped;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use kmeans::make_lists;
pub use lists::{Lists, Probe};
pub use scan::scan;
pub use top::Hit;
pub use vectors::Vectors;

use self::batcher::{Request, Searcher, ask};
use self::encoder::EncoderCommand;
use crate::bm25::corpus::Corpus;
use crate::{Passage, Retriever};

/// The places of passages, beside the vectors.
const PLACES: &str = "places";

/// The keys of the source `dense`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DenseConfig {
    /// The folder that `nestor embed` wrote.
    pub index: PathBuf,
    /// The encoder that made the vectors: its folder, or its cached Hub id. The run starts `nestor embed --serve` with it once.
    pub model: PathBuf,
    /// The corpus that the vectors were made from.
    pub corpus: PathBuf,
    /// Lists that a query looks into; `nestor-retrieve lists` makes them. If omitted, search is exact.
    #[serde(default)]
    pub nprobe: Option<usize>,
    /// The device of the encoder.
    #[serde(default)]
    pub device: Device,
    /// The file of the program `nestor`. If omitted: the one beside the program that runs.
    #[serde(default)]
    pub program: Option<PathBuf>,
    /// Seconds that the encoder may take to start, and to answer.
    #[serde(default = "timeout")]
    pub timeout_s: f64,
    /// Threads of a search. If omitted: one for each core.
    #[serde(default)]
    pub threads: Option<usize>,
}

/// A device of the encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// The CPU, which leaves the memory of a GPU to the run.
    #[default]
    Cpu,
    /// A GPU.
    Cuda,
    /// A GPU if there is one.
    Auto,
}

impl DenseConfig {
    /// Exact search with every other key at its default.
    pub fn new(index: PathBuf, model: PathBuf, corpus: PathBuf) -> Self {
        let (nprobe, program, threads) = (None, None, None);
        Self { index, model, corpus, nprobe, device: Device::Cpu, program, timeout_s: timeout(), threads }
    }
}

fn timeout() -> f64 {
    120.0
}

/// Passages by the inner product of their vectors with a query's. Equal scores follow the order of the corpus.
pub struct Dense {
    index: PathBuf,
    corpus: Corpus,
    requests: Sender<Request>,
    /// Queries so far.
    queries: AtomicU64,
}

impl Dense {
    /// Opens an index. The encoder starts at the first query.
    ///
    /// # Errors
    /// If a setting makes no sense, a file is missing or damaged, or the corpus is not that of the vectors.
    pub fn open(config: &DenseConfig) -> Result<Self> {
        let &DenseConfig { nprobe, timeout_s, .. } = config;
        let key = |key: &str| format!("retriever key `dense.{key}`");
        ensure!(timeout_s > 0.0 && timeout_s <= 86_400.0, "{}: {timeout_s} s; give 1 to 86400", key("timeout_s"));
        ensure!(config.threads != Some(0), "{}: 0 threads cannot search; give 1 or more", key("threads"));
        ensure!(nprobe != Some(0), "{}: 0 lists hold nothing; give 1 or more, or leave it out", key("nprobe"));
        let vectors = Vectors::open(&config.index)?;
        let lists = nprobe.map(|nprobe| Ok::<_, anyhow::Error>((Lists::open(&config.index, &vectors)?, nprobe)));
        let lists = lists.transpose()?;
        if let Some((lists, nprobe)) = &lists {
            ensure!(*nprobe <= lists.len(), "{}: {nprobe}, but there are {} lists", key("nprobe"), lists.len());
        }
        let corpus = open_corpus(config, &vectors)?;
        let command = EncoderCommand {
            program: program(config.program.as_deref())?,
            model: config.model.clone(),
            query_prefix: vectors.note("query_prefix")?,
            max_length: vectors.note("max_length")?,
            device: match config.device {
                Device::Cpu => "cpu",
                Device::Cuda => "cuda",
                Device::Auto => "auto",
            },
            timeout: Duration::from_secs_f64(timeout_s),
        };
        let dir = config.index.clone();
        let searcher = Searcher { dir, vectors, lists, threads: threads(config.threads), command, encoder: None };
        let requests = searcher.run()?;
        Ok(Self { index: config.index.clone(), corpus, requests, queries: AtomicU64::new(0) })
    }
}

impl Retriever for Dense {
    fn retrieve(&self, query: &str, topk: usize) -> Result<Vec<Passage>> {
        let number = self.queries.fetch_add(1, Ordering::Relaxed) + 1;
        let context = || format!("query {number} to the dense index {}", self.index.display());
        let hits = ask(&self.requests, query, topk).with_context(context)?;
        let passage =
            |hit: &Hit| -> Result<Passage> { Ok(Passage { score: hit.score.into(), ..self.corpus.passage(hit.row)? }) };
        hits.iter().map(|hit| passage(hit).with_context(context)).collect()
    }
}

/// Opens the corpus, and checks that the vectors were made of it as far as its size shows. Each passage is compared with the
/// checksum of its line when it is read.
fn open_corpus(config: &DenseConfig, vectors: &Vectors) -> Result<Corpus> {
    let (corpus, index) = (config.corpus.display(), config.index.display());
    let remedy = "give the corpus that they were made of, or run `nestor embed` again";
    let about = std::fs::metadata(&config.corpus).with_context(|| format!("{corpus}: cannot read the corpus"))?;
    let bytes: u64 = vectors.note("corpus_bytes")?;
    ensure!(
        about.len() == bytes,
        "{corpus} has {} bytes, but the vectors in {index} were made of a corpus of {bytes}: {remedy}",
        about.len()
    );
    let path = config.index.join(PLACES);
    let places = Mapped::open(&path).with_context(|| format!("{index}: no index to use; run `nestor embed` again"))?;
    let sum = format!("{:08x}", crc32fast::hash(&places));
    ensure!(
        sum == vectors.note::<String>("places_crc32")?,
        "{}: damaged, or of other vectors; run `nestor embed` again",
        path.display()
    );
    let corpus = Corpus::open(&config.corpus, &path)?;
    ensure!(corpus.passages() == vectors.len(), "{index}: {} places for {} vectors", corpus.passages(), vectors.len());
    Ok(corpus)
}

/// The file of the program `nestor`.
fn program(given: Option<&Path>) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding the program that runs")?;
    let found = given.map_or_else(|| own.with_file_name("nestor"), Path::to_path_buf);
    ensure!(
        found.is_file(),
        "{}: no such program; set the retriever key `dense.program` to nestor's file, which encodes the queries",
        found.display()
    );
    Ok(found)
}

/// The given number of threads, or one for each core.
pub fn threads(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}
