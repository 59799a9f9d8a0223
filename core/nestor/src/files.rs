//! Reads small files with clear errors, writes files atomically, computes checksums.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::input_error;

/// Reads the object in a JSON file; none where the file does not exist.
pub fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(input_error!("{}: not UTF-8 text; fetch the file again", path.display()));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(input_error!("{}: holds no JSON object; fetch the file again", path.display())),
        Err(error) => Err(input_error!("{}: not valid JSON ({error}); fetch the file again", path.display())),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    rows: Vec<Vec<u32>>,
}

/// Reads the rows of a tokens file, `{"rows": [[ids…], …]}`.
pub fn read_tokens(path: &Path) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(path).map_err(|error| input_error!("{}: {error}", path.display()))?;
    let tokens: Tokens = serde_json::from_str(&text)
        .map_err(|error| input_error!("{}: {error}; tokens are {{\"rows\": [[id, …], …]}}", path.display()))?;
    Ok(tokens.rows)
}

/// Writes a JSON file atomically.
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    write_whole(path, serde_json::to_string_pretty(value)? + "\n")
}

/// Replaces a file atomically: neither a reader nor a killed run sees half of it.
pub fn write_whole(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let written = std::fs::write(&partial, content).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // Frees the room on a full disk. The first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Size and SHA-256 of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    pub bytes: u64,
    /// Hexadecimal.
    pub sha256: String,
}

/// Computes the sum of a file.
pub fn sum(path: &Path) -> Result<Sum> {
    let context = || format!("reading {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer).with_context(context)?;
        if n == 0 {
            return Ok(Sum { bytes, sha256: hex(hasher) });
        }
        hasher.update(&buffer[..n]);
        bytes += n as u64;
    }
}

/// The checksum in hexadecimal.
pub fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A new file that computes its sum while it is written.
#[derive(Debug)]
pub struct SummedFile {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    bytes: u64,
}

impl SummedFile {
    /// Creates or truncates the file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.into(), file, hasher: Sha256::new(), bytes: 0 })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Flushes the file to disk and returns its sum.
    pub fn finish(self) -> Result<Sum> {
        self.file.sync_all().with_context(|| format!("flushing {}", self.path.display()))?;
        Ok(Sum { bytes: self.bytes, sha256: hex(self.hasher) })
    }
}

/// Flushes a file or a directory to disk.
pub fn flush(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).with_context(|| format!("flushing {}", path.display()))
}
