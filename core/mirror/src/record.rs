//! The upload under way, on disk: a process that is started again continues it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The file of the record, in the run directory.
pub const RECORD: &str = "mirror.json";

/// A checkpoint that is being uploaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The mirror; a record of another one is worthless.
    url: String,
    /// The name of the checkpoint.
    pub checkpoint: String,
    /// The SHA-256 of its files that are whole in the store.
    pub done: BTreeMap<String, String>,
    pub part: Option<Parts>,
}

/// A file of which some parts are in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    pub file: String,
    pub sha256: String,
    pub part_bytes: u64,
    /// The store's name of the upload.
    pub id: String,
    /// The store's names of the parts; none for one that is not there yet.
    pub parts: Vec<Option<String>>,
}

/// A record with its file.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    pub record: Record,
}

impl RecordFile {
    /// The record of a run directory, empty where there is none of this mirror. A damaged one only costs another upload.
    pub fn open(dir: &Path, url: &str) -> Self {
        let path = dir.join(RECORD);
        let found = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        let record = found.filter(|found| found.url == url).unwrap_or(Record { url: url.into(), ..Record::default() });
        Self { path, record }
    }

    /// Begins a checkpoint: forgets another one.
    pub fn begin(&mut self, checkpoint: &str) {
        if self.record.checkpoint != checkpoint {
            let url = std::mem::take(&mut self.record.url);
            self.record = Record { url, checkpoint: checkpoint.into(), ..Record::default() };
        }
    }

    pub fn save(&self) -> Result<()> {
        let partial = self.path.with_extension("json.tmp");
        let written =
            fs::write(&partial, serde_json::to_vec(&self.record)?).and_then(|()| fs::rename(&partial, &self.path));
        written.with_context(|| format!("writing {}", self.path.display()))
    }

    /// Removes the file: nothing is under way.
    pub fn clear(&mut self) {
        self.begin("");
        let _ = fs::remove_file(&self.path); // one that stays is of no checkpoint
    }
}
