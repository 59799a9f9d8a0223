//! The messages of a run file, as far as this crate writes and reads them.
//!
//! Field numbers are those of `wandb_internal.proto`, which W&B keeps stable because files of old clients are still
//! uploaded (compared with the Python package `wandb` 0.31.0). Fields omitted here are absent from the file.

use prost::{Enumeration, Message, Oneof};
use std::time::{Duration, SystemTime};

/// One record of the file: its number, counted from 1, and its content.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(int64, tag = "1")]
    pub num: i64,
    #[prost(oneof = "Kind", tags = "2, 3, 5, 6, 7, 10, 12, 13, 17, 18, 21, 26")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Kind {
    #[prost(message, tag = "2")]
    History(History),
    #[prost(message, tag = "3")]
    Summary(Items),
    #[prost(message, tag = "5")]
    Config(Items),
    #[prost(message, tag = "6")]
    Files(Files),
    #[prost(message, tag = "7")]
    Stats(Stats),
    #[prost(message, tag = "10")]
    Alert(Alert),
    #[prost(message, tag = "12")]
    Metric(MetricRecord),
    #[prost(message, tag = "13")]
    Output(Output),
    #[prost(message, boxed, tag = "17")]
    Run(Box<RunRecord>),
    #[prost(message, tag = "18")]
    Exit(Exit),
    #[prost(message, tag = "21")]
    Header(Header),
    #[prost(message, boxed, tag = "26")]
    Environment(Box<Environment>),
}

/// A key, or a path of keys, and its value as JSON. Config, summary, history and statistics all use this shape.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Item {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, repeated, tag = "2")]
    pub nested_key: Vec<String>,
    #[prost(string, tag = "16")]
    pub value_json: String,
}

impl Item {
    pub fn new(mut path: Vec<String>, value_json: String) -> Self {
        match path.len() {
            1 => Item { key: path.remove(0), nested_key: Vec::new(), value_json },
            _ => Item { key: String::new(), nested_key: path, value_json },
        }
    }

    pub fn path(&self) -> Vec<String> {
        if self.nested_key.is_empty() { vec![self.key.clone()] } else { self.nested_key.clone() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Items {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct History {
    #[prost(message, repeated, tag = "1")]
    pub item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub step: Option<Step>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Step {
    #[prost(int64, tag = "1")]
    pub num: i64,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = since_epoch(time);
        Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 }
    }
}

/// Returns the time since 1970; zero for a clock set before it.
pub(crate) fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(message, optional, tag = "1")]
    pub version_info: Option<VersionInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionInfo {
    #[prost(string, tag = "1")]
    pub producer: String,
    #[prost(string, tag = "2")]
    pub min_consumer: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunRecord {
    #[prost(string, tag = "1")]
    pub run_id: String,
    #[prost(string, tag = "2")]
    pub entity: String,
    #[prost(string, tag = "3")]
    pub project: String,
    #[prost(string, tag = "6")]
    pub run_group: String,
    #[prost(string, tag = "7")]
    pub job_type: String,
    #[prost(string, tag = "8")]
    pub display_name: String,
    #[prost(string, tag = "9")]
    pub notes: String,
    #[prost(string, repeated, tag = "10")]
    pub tags: Vec<String>,
    #[prost(string, tag = "13")]
    pub host: String,
    #[prost(message, optional, tag = "17")]
    pub start_time: Option<Timestamp>,
    #[prost(message, optional, tag = "21")]
    pub git: Option<GitRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GitRecord {
    #[prost(string, tag = "1")]
    pub remote_url: String,
    #[prost(string, tag = "2")]
    pub commit: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetricRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub glob_name: String,
    #[prost(string, tag = "4")]
    pub step_metric: String,
    #[prost(message, optional, tag = "6")]
    pub options: Option<MetricOptions>,
    #[prost(message, optional, tag = "7")]
    pub summary: Option<MetricSummary>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct MetricOptions {
    #[prost(bool, tag = "3")]
    pub defined: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct MetricSummary {
    #[prost(bool, tag = "1")]
    pub min: bool,
    #[prost(bool, tag = "2")]
    pub max: bool,
    #[prost(bool, tag = "3")]
    pub mean: bool,
    #[prost(bool, tag = "5")]
    pub last: bool,
    #[prost(bool, tag = "8")]
    pub first: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Files {
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<FileItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FileItem {
    #[prost(string, tag = "1")]
    pub path: String,
    /// Upload time: 0 now, 1 at the end, 2 as it changes. A zero is not written.
    #[prost(int32, tag = "2")]
    pub policy: i32,
    #[prost(enumeration = "FileType", tag = "3")]
    pub file_type: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum FileType {
    Other = 0,
    Media = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Stats {
    #[prost(message, optional, tag = "2")]
    pub timestamp: Option<Timestamp>,
    #[prost(message, repeated, tag = "3")]
    pub item: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Alert {
    #[prost(string, tag = "1")]
    pub title: String,
    #[prost(string, tag = "2")]
    pub text: String,
    #[prost(string, tag = "3")]
    pub level: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Output {
    /// 0 standard error, 1 standard output.
    #[prost(int32, tag = "1")]
    pub output_type: i32,
    #[prost(message, optional, tag = "2")]
    pub timestamp: Option<Timestamp>,
    #[prost(string, tag = "3")]
    pub line: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Exit {
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    /// Whole seconds.
    #[prost(int32, tag = "2")]
    pub runtime: i32,
}

/// Machine data for the Overview tab.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Environment {
    #[prost(string, tag = "1")]
    pub os: String,
    #[prost(message, optional, tag = "3")]
    pub started_at: Option<Timestamp>,
    #[prost(string, repeated, tag = "5")]
    pub args: Vec<String>,
    #[prost(string, tag = "6")]
    pub program: String,
    #[prost(message, optional, tag = "9")]
    pub git: Option<GitRecord>,
    #[prost(string, tag = "12")]
    pub host: String,
    #[prost(string, tag = "14")]
    pub executable: String,
    #[prost(uint32, tag = "16")]
    pub cpu_count: u32,
    #[prost(uint32, tag = "17")]
    pub cpu_count_logical: u32,
    #[prost(string, tag = "18")]
    pub gpu_type: String,
    #[prost(uint32, tag = "19")]
    pub gpu_count: u32,
    #[prost(message, optional, tag = "21")]
    pub memory: Option<Memory>,
    #[prost(message, optional, tag = "22")]
    pub cpu: Option<Cpu>,
    #[prost(message, repeated, tag = "24")]
    pub gpu_nvidia: Vec<GpuNvidia>,
    /// The writer's id; the uploader keeps one entry per writer.
    #[prost(string, tag = "199")]
    pub writer_id: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Memory {
    /// Bytes.
    #[prost(uint64, tag = "1")]
    pub total: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cpu {
    #[prost(uint32, tag = "1")]
    pub count: u32,
    #[prost(uint32, tag = "2")]
    pub count_logical: u32,
    #[prost(string, tag = "3")]
    pub model: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GpuNvidia {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Bytes.
    #[prost(uint64, tag = "2")]
    pub memory_total: u64,
    #[prost(string, tag = "5")]
    pub uuid: String,
}
