//! Files of JSON lines: metrics without measured numbers, and episodes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use nestor_plugin::files::{self, LARGE};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::difference::{Difference, first_difference};
use crate::files::hex;
use crate::input_error;

/// Metrics that differ between two runs of the same numbers: durations, memory, speed, and what an environment's own numbers
/// name so.
const MEASURED: [&str; 8] = [
    "time/",
    "memory/",
    "perf/",
    "rollout/tokens_per_s",
    "update/tokens_per_s",
    "update/mfu",
    "env/measured_",
    "eval/env/measured_",
];

/// The contents of a file's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// Numbers, measured ones among them.
    Metrics,
    /// Episodes of one iteration.
    Episodes,
}

/// The objects of a file, one at a time, without the measured numbers.
struct Reader<'a> {
    path: &'a Path,
    lines: std::io::Lines<BufReader<File>>,
    kind: Lines,
    number: usize,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path, kind: Lines) -> Result<Self> {
        let file = files::open_within(path, LARGE).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { path, lines: BufReader::new(file).lines(), kind, number: 0 })
    }

    fn next(&mut self) -> Result<Option<Value>> {
        let Some(line) = self.lines.next() else { return Ok(None) };
        self.number += 1;
        let (path, number) = (self.path.display(), self.number);
        let line = line.with_context(|| format!("cannot read {path}"))?;
        let value = serde_json::from_str(&line).map_err(|error| {
            input_error!("{path}, line {number}: no JSON ({error}); compare runs that have ended or can be resumed")
        })?;
        Ok(Some(match (self.kind, value) {
            (Lines::Metrics, Value::Object(row)) => {
                row.into_iter().filter(|(name, _)| !is_measured(name)).collect::<Map<_, _>>().into()
            }
            (_, value) => value,
        }))
    }
}

fn is_measured(name: &str) -> bool {
    MEASURED.iter().any(|start| name.starts_with(start))
}

/// SHA-256 of a file's lines, without measured numbers.
pub fn digest(path: &Path, kind: Lines) -> Result<String> {
    let (mut reader, mut hasher) = (Reader::open(path, kind)?, Sha256::new());
    while let Some(value) = reader.next()? {
        hasher.update(value.to_string());
        hasher.update(b"\n");
    }
    Ok(hex(hasher))
}

/// The first difference between the lines of two files.
pub fn compare(first: &Path, other: &Path, kind: Lines) -> Result<Option<Difference>> {
    let (mut a, mut b) = (Reader::open(first, kind)?, Reader::open(other, kind)?);
    loop {
        let found = match (a.next()?, b.next()?) {
            (None, None) => return Ok(None),
            (Some(one), Some(two)) => first_difference(&one, &two).map(|found| place(found, &one, kind)),
            (one, two) => {
                let line = one.as_ref().or(two.as_ref());
                let found = Difference::missing(&format!("line {}", a.number.max(b.number)), one.is_some());
                line.map(|line| place(found, line, kind))
            }
        };
        if found.is_some() {
            return Ok(found);
        }
    }
}

/// Names the iteration or the episode of a line.
fn place(mut found: Difference, line: &Value, kind: Lines) -> Difference {
    let names: &[&str] = match kind {
        Lines::Metrics => &["step", "iteration"],
        Lines::Episodes => &["sample", "episode", "group", "task"],
    };
    for name in names {
        if let Some(at) = line.get(name).filter(|at| !at.is_null()) {
            found = found.within(name, at.clone());
        }
    }
    found
}

/// The numbers of a metric over the rows of `metrics.jsonl`, with their iterations.
pub fn column(run: &Path, name: &str) -> Result<Vec<(u64, f64)>> {
    let path = run.join("metrics.jsonl");
    let file = files::open_within(&path, LARGE).with_context(|| format!("cannot open {}", path.display()))?;
    let mut column = Vec::new();
    for line in BufReader::new(file).lines() {
        let row: Value = serde_json::from_str(&line?).with_context(|| format!("reading {}", path.display()))?;
        column.extend(row["iteration"].as_u64().zip(row[name].as_f64()));
    }
    Ok(column)
}

/// The first row of a file.
pub fn first_row(path: &Path) -> Result<Option<Value>> {
    Reader::open(path, Lines::Metrics)?.next()
}
