//! Event files for TensorBoard: scalars, histograms and the recipe of a run.
//!
//! The format is TensorFlow's: a file of TFRecords, each a message `Event` (tensorflow/core/util/event.proto, summary.proto).
//! No crate writes it here: `tensorboard-rs` 0.5.9 (2021) brings rust-protobuf 2 and an image library of 2020, `tboard` 0.1.1
//! (2023) needs `protoc` at build time and writes neither histograms nor restarts, `tfrecord` 0.15 (2023) brings
//! another prost and a dozen crates for these hundred lines.
//!
//! Tracking must not end a run: on the first failed write it warns, and the run continues without TensorBoard.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use prost::Message as _;

use super::{Histogram, Kept, Metrics};
use crate::recipe::Recipe;
use crate::terminal;

/// A run's event files. Does nothing where the recipe has no section `tensorboard`, and at ranks other than 0.
pub struct TensorBoard(Option<Streams>);

/// TensorBoard's runs, each with steps of its own: a restart then discards nothing of the others.
struct Streams {
    /// Iterations.
    rows: Stream,
    /// Optimizer steps.
    steps: Stream,
    warm_start: Stream,
}

impl TensorBoard {
    /// Tracks nothing.
    pub fn silent() -> Self {
        Self(None)
    }

    /// Begins the event files of a run that keeps `kept` and `steps` optimizer steps of its earlier lives.
    pub fn open(recipe: &Recipe, dir: &Path, kept: Kept, steps: u64) -> Result<Self> {
        let Some(section) = &recipe.tensorboard else { return Ok(Self::silent()) };
        let logs = match &section.dir {
            Some(logs) => Path::new(logs).join(dir.file_name().unwrap_or_default()),
            None => dir.join("tensorboard"),
        };
        let first = |kept: Option<u64>| kept.map_or(0, |last| last.saturating_add(1));
        let mut streams = Streams {
            rows: Stream::new(logs.clone(), first(kept.iteration())),
            steps: Stream::new(logs.join("steps"), first(Some(steps))),
            warm_start: Stream::new(logs.join("warm_start"), first(kept.warm_start())),
        };
        // Those that exist may hold steps of an earlier life that this one discards.
        for stream in [&mut streams.steps, &mut streams.warm_start]
            .into_iter()
            .filter(|stream| stream.dir.exists() && stream.first < u64::MAX)
        {
            stream.write(0, Vec::new())?;
        }
        streams.rows.write(kept.iteration().unwrap_or(0), vec![text("recipe", &recipe.to_yaml()?)])?;
        Ok(Self(Some(streams)))
    }

    /// Adds the row of an iteration. The warm start's losses have curves of their own.
    pub fn record(&mut self, iteration: u64, metrics: &Metrics) {
        let values = metrics.iter().filter(|(name, _)| !name.starts_with("warm_start/")).map(scalar).collect();
        self.attempt(|streams| streams.rows.write(iteration, values));
    }

    /// Adds the histograms of an iteration.
    pub fn histograms(&mut self, iteration: u64, histograms: &[(&str, Histogram)]) {
        let values = histograms.iter().map(|(name, counts)| histogram(name, counts)).collect();
        self.attempt(|streams| streams.rows.write(iteration, values));
    }

    /// Adds an optimizer step of the run.
    pub fn step(&mut self, step: u64, metrics: &Metrics) {
        let values = metrics.iter().map(scalar).collect();
        self.attempt(|streams| streams.steps.write(step, values));
    }

    /// Adds a step of the warm start.
    pub fn warm_start(&mut self, step: u64, values: &[(&'static str, f64)]) {
        let values = values.iter().copied().map(scalar).collect();
        self.attempt(|streams| streams.warm_start.write(step, values));
    }

    fn attempt(&mut self, write: impl FnOnce(&mut Streams) -> Result<()>) {
        let Some(streams) = &mut self.0 else { return };
        if let Err(error) = write(streams) {
            terminal::warn(&format!("warning: tensorboard: {error:#}; the run continues without TensorBoard"));
            self.0 = None;
        }
    }
}

/// One of TensorBoard's runs: a folder of event files. Each life of the run begins a file with its first event.
struct Stream {
    dir: PathBuf,
    /// Readers discard the events of earlier files from this step on.
    first: u64,
    file: Option<File>,
}

impl Stream {
    fn new(dir: PathBuf, first: u64) -> Self {
        Self { dir, first, file: None }
    }

    fn write(&mut self, step: u64, values: Vec<proto::Value>) -> Result<()> {
        let mut records = Vec::new();
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                records.extend(record(0, proto::What::FileVersion("brain.Event:2".into())));
                // As TensorFlow's writer with `purge_step`.
                let start = proto::SessionLog { status: proto::START };
                records.extend(record(self.first.min(i64::MAX as u64), proto::What::SessionLog(start)));
                self.file.insert(create(&self.dir)?)
            }
        };
        if !values.is_empty() {
            records.extend(record(step, proto::What::Summary(proto::Summary { value: values })));
        }
        // One write: a killed process leaves at most its last event incomplete, which readers skip.
        file.write_all(&records).with_context(|| format!("writing into {}", self.dir.display()))
    }
}

/// Creates the next event file of a folder. Readers take the files of a folder in the order of their names.
fn create(dir: &Path) -> Result<File> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let names = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?.flatten();
    let times = names.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("events.out.tfevents.")?.split('.').next()?.parse::<u64>().ok()
    });
    // Two lives may begin in the same second, and a clock may be set back.
    let second = times.max().map_or(0, |newest| newest + 1).max(now() as u64);
    let path = dir.join(format!("events.out.tfevents.{second:010}.nestor"));
    File::create_new(&path).with_context(|| format!("making {}", path.display()))
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// An event as a TFRecord: length and message, each with its checksum.
fn record(step: u64, what: proto::What) -> Vec<u8> {
    let event = proto::Event { wall_time: now(), step: step as i64, what: Some(what) }.encode_to_vec();
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), &event, &checksum(&event)].concat()
}

/// TFRecord's masked CRC-32C (tensorflow/core/lib/hash/crc32c.h).
fn checksum(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn scalar((tag, value): (&str, f64)) -> proto::Value {
    proto::Value { tag: tag.into(), simple: Some(value as f32), ..proto::Value::default() }
}

fn histogram(tag: &str, counts: &Histogram) -> proto::Value {
    let edges = &counts.edges;
    let histogram = proto::Histogram {
        min: edges[0],
        max: edges[edges.len() - 1],
        num: counts.counts.iter().sum::<u64>() as f64,
        sum: counts.sum,
        sum_squares: counts.sum_squares,
        bucket_limit: edges[1..].to_vec(),
        bucket: counts.counts.iter().map(|&count| count as f64).collect(),
    };
    proto::Value { tag: tag.into(), histogram: Some(histogram), ..proto::Value::default() }
}

/// A text, shown as code: TensorBoard reads texts as Markdown.
fn text(tag: &str, content: &str) -> proto::Value {
    let code: String = content.lines().map(|line| format!("    {line}\n")).collect();
    let plugin = proto::PluginData { plugin_name: "text".into() };
    let shape = proto::Shape { dim: vec![proto::Dim { size: 1 }] };
    proto::Value {
        tag: tag.into(),
        metadata: Some(proto::Metadata { plugin_data: Some(plugin) }),
        tensor: Some(proto::Tensor { dtype: proto::STRING, shape: Some(shape), strings: vec![code.into_bytes()] }),
        ..proto::Value::default()
    }
}

/// The fields of TensorFlow's messages that are written here, under their numbers.
mod proto {
    use prost::{Message, Oneof};

    /// `SessionLog.START`.
    pub const START: i32 = 1;
    /// `DT_STRING`.
    pub const STRING: i32 = 7;

    #[derive(Clone, PartialEq, Message)]
    pub struct Event {
        #[prost(double, tag = 1)]
        pub wall_time: f64,
        #[prost(int64, tag = 2)]
        pub step: i64,
        #[prost(oneof = "What", tags = "3, 5, 7")]
        pub what: Option<What>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum What {
        #[prost(string, tag = 3)]
        FileVersion(String),
        #[prost(message, tag = 5)]
        Summary(Summary),
        #[prost(message, tag = 7)]
        SessionLog(SessionLog),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct SessionLog {
        #[prost(int32, tag = 1)]
        pub status: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Summary {
        #[prost(message, repeated, tag = 1)]
        pub value: Vec<Value>,
    }

    /// `Summary.Value`, of which one of `simple`, `histogram` and `tensor` is set.
    #[derive(Clone, PartialEq, Message)]
    pub struct Value {
        #[prost(string, tag = 1)]
        pub tag: String,
        #[prost(float, optional, tag = 2)]
        pub simple: Option<f32>,
        #[prost(message, optional, tag = 5)]
        pub histogram: Option<Histogram>,
        #[prost(message, optional, tag = 8)]
        pub tensor: Option<Tensor>,
        #[prost(message, optional, tag = 9)]
        pub metadata: Option<Metadata>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Histogram {
        #[prost(double, tag = 1)]
        pub min: f64,
        #[prost(double, tag = 2)]
        pub max: f64,
        #[prost(double, tag = 3)]
        pub num: f64,
        #[prost(double, tag = 4)]
        pub sum: f64,
        #[prost(double, tag = 5)]
        pub sum_squares: f64,
        #[prost(double, repeated, tag = 6)]
        pub bucket_limit: Vec<f64>,
        #[prost(double, repeated, tag = 7)]
        pub bucket: Vec<f64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Metadata {
        #[prost(message, optional, tag = 1)]
        pub plugin_data: Option<PluginData>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct PluginData {
        #[prost(string, tag = 1)]
        pub plugin_name: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Tensor {
        #[prost(int32, tag = 1)]
        pub dtype: i32,
        #[prost(message, optional, tag = 2)]
        pub shape: Option<Shape>,
        #[prost(bytes = "vec", repeated, tag = 8)]
        pub strings: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Shape {
        #[prost(message, repeated, tag = 2)]
        pub dim: Vec<Dim>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Dim {
        #[prost(int64, tag = 1)]
        pub size: i64,
    }
}
