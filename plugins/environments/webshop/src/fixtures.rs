//! Files and traces of the original engine with Lucene (`tests/fixtures/webshop/shop.tar.gz`). Its tagger of nouns was a
//! stand-in.

use std::fs::{self, File};
use std::path::Path;

use flate2::read::GzDecoder;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// Unpacks the archive.
pub fn unpack() -> TempDir {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/webshop/shop.tar.gz");
    let folder = tempfile::tempdir().unwrap();
    tar::Archive::new(GzDecoder::new(File::open(archive).unwrap())).unpack(folder.path()).unwrap();
    folder
}

/// Reads a file of JSON.
pub fn read<T: DeserializeOwned>(path: impl AsRef<Path>) -> T {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Reads the recorded episodes, by the names of their files.
pub fn traces<T: DeserializeOwned>(fixtures: &TempDir) -> Vec<(String, T)> {
    let files = fs::read_dir(fixtures.path().join("traces")).unwrap().map(|entry| entry.unwrap().path());
    let traces: Vec<_> = files.map(|path| (path.display().to_string(), read(&path))).collect();
    assert_eq!(traces.len(), 6);
    traces
}
