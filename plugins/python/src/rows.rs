//! Files of prompts in Parquet, as JSON Lines for the worker: it has Python's standard library alone.

use std::any::Any;
use std::io::{BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result, bail};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Value, json};
use tempfile::{Builder, TempPath};

/// Longest file in bytes: its rows are in the memory of every worker.
const LONGEST: u64 = 4 << 30;

/// Replaces each path of a Parquet file in the argument `data` by an object: its rows in JSON Lines, and its own name for
/// messages. Returns the files that were made, which are removed when they are dropped.
pub fn convert(data: &mut Value) -> Result<Vec<TempPath>> {
    let mut made = Vec::new();
    match data {
        Value::Object(splits) => splits.values_mut().try_for_each(|files| convert_into(files, &mut made))?,
        Value::Array(files) => files.iter_mut().try_for_each(|file| convert_into(file, &mut made))?,
        Value::String(path) if path.ends_with(".parquet") => {
            let rows = json_lines(Path::new(path)).with_context(|| format!("config key `data`: {path}"))?;
            *data = json!({ "rows": rows.display().to_string(), "of": path });
            made.push(rows);
        }
        _ => {}
    }
    Ok(made)
}

fn convert_into(data: &mut Value, made: &mut Vec<TempPath>) -> Result<()> {
    made.extend(convert(data)?);
    Ok(())
}

/// The rows of a Parquet file, one JSON object a line. The crate `parquet` (60.1) panics at some damaged pages; such a panic is
/// an error like the others.
fn json_lines(path: &Path) -> Result<TempPath> {
    let file = nestor_plugin::files::open(path).context("it cannot be read")?;
    let length = file.metadata()?.len();
    if length > LONGEST {
        bail!("it has {length} bytes; the limit is {} GiB", LONGEST >> 30);
    }
    let write = || -> Result<TempPath> {
        let reader = SerializedFileReader::new(file).context("it is no whole Parquet file")?;
        let rows =
            Builder::new().prefix("nestor-rows-").suffix(".jsonl").tempfile().context("making a file of its rows")?;
        let mut out = BufWriter::new(rows.as_file());
        for row in reader.get_row_iter(None)? {
            writeln!(out, "{}", row?.to_json_value()).context("writing its rows")?;
        }
        out.flush().context("writing its rows")?;
        drop(out);
        Ok(rows.into_temp_path())
    };
    let message = |panic: Box<dyn Any + Send>| match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "unknown".to_owned(),
    };
    catch_unwind(AssertUnwindSafe(write))
        .unwrap_or_else(|panic| bail!("it is damaged, copy or write it again: {}", message(panic)))
}
