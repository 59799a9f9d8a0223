//! Files of one JSON object a line.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::files;
use serde_json::{Map, Value};

use super::columns::{Column, Columns, Row};

/// Longest line, in bytes. A question needs less than one in a thousand of it.
const LONGEST: u64 = 16 << 20;

/// Reads a file. Empty lines do not count.
pub fn read(path: &Path, columns: &Columns) -> Result<Vec<Row>> {
    let file = files::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = BufReader::new(file);
    let (mut rows, mut line) = (Vec::new(), Vec::new());
    for number in 1.. {
        line.clear();
        let place = || format!("{}:{number}", path.display());
        let read = std::io::Read::take(&mut lines, LONGEST).read_until(b'\n', &mut line).with_context(place)?;
        if read == 0 {
            break;
        }
        ensure!(read < LONGEST as usize, "{}: the line is longer than {} MiB", place(), LONGEST >> 20);
        if !line.trim_ascii().is_empty() {
            rows.push(row(number, &line, columns).with_context(place)?);
        }
    }
    Ok(rows)
}

fn row(number: u64, line: &[u8], columns: &Columns) -> Result<Row> {
    ensure!(!line.starts_with(b"\xef\xbb\xbf"), "the file starts with a byte order mark: save it as UTF-8 without one");
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| anyhow::anyhow!("column {}: {}", error.column(), without_place(&error.to_string())))?;
    let Value::Object(object) = value else {
        bail!("expected an object like {{\"question\": …}}, found {}", kind(&value))
    };
    let find = |column: Column| {
        let had = || object.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        column.locate(columns, |name| Some((name.to_owned(), within(&object, name)?)), had)
    };
    let text = |column: Column| -> Result<Option<String>> {
        let Some((name, value)) = find(column)? else { return Ok(None) };
        match value {
            Value::String(text) => Ok(Some(text.clone())),
            other => bail!("column {name} must be a text, found {}", kind(other)),
        }
    };
    let question = text(Column::Question)?.unwrap_or_default();
    let source = text(Column::Source)?;
    let (name, value) = find(Column::Answers)?.context("no answers")?;
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        other => bail!("column {name} must be a list of texts, found {} in it", kind(other)),
    };
    let answers = match value {
        Value::Array(list) => list.iter().map(one).collect::<Result<_>>()?,
        Value::String(text) => vec![text.clone()],
        other => bail!("column {name} must be a list of texts, found {}", kind(other)),
    };
    Ok(Row { number, question, answers, source })
}

/// The value of a key, or by dots of a key inside an object.
fn within<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(value) = object.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    within(object.get(first)?.as_object()?, rest)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A message of serde_json without its line, which is always 1 here, and column.
fn without_place(message: &str) -> &str {
    message.split(" at line ").next().unwrap_or(message)
}
