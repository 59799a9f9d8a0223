//! `nestor embed --serve`: a process that turns queries into vectors, one line in and one line out.

use std::io::{self, BufRead, Read, Write};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;
use tch::Tensor;

use super::encoder::{Encoder, EncoderOptions};

/// Most bytes of a line of queries.
const LONGEST: u64 = 64 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    queries: Vec<String>,
}

/// Loads the encoder, prints a line that describes it, and answers each line of `input` until its end. A line that cannot
/// be answered gets a line with `error`.
///
/// # Errors
/// If the encoder cannot be loaded, or nobody reads the answers.
pub fn serve(options: &EncoderOptions, prefix: &str, mut input: impl BufRead, output: &mut impl Write) -> Result<()> {
    let encoder = Encoder::load(options)?;
    let Encoder { sum, max_length, .. } = &encoder;
    let mut say = |line: serde_json::Value| {
        writeln!(output, "{line}").and_then(|()| output.flush()).context("cannot write an answer")
    };
    say(json!({ "dim": encoder.dim(), "model_sum": sum, "max_length": max_length }))?;
    while let Some(line) = next_line(&mut input).context("cannot read a query")? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match answer(&encoder, prefix, &line) {
            Ok(vectors) => say(json!({ "vectors": vectors }))?,
            Err(error) => say(json!({ "error": format!("{error:#}") }))?,
        }
    }
    Ok(())
}

/// Reads a line with its end; none at the end of the input. Of a line that is too long only so much is kept that it cannot be answered.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut part = Vec::new();
    loop {
        part.clear();
        input.take(LONGEST).read_until(b'\n', &mut part)?;
        let ends = part.last().is_none_or(|&last| last == b'\n');
        if line.len() as u64 <= LONGEST {
            line.append(&mut part);
        }
        if ends {
            return Ok((!line.is_empty()).then_some(line));
        }
    }
}

fn answer(encoder: &Encoder, prefix: &str, line: &[u8]) -> Result<Vec<Vec<f32>>> {
    ensure!(line.len() as u64 <= LONGEST, "a line has over {LONGEST} bytes; send fewer queries at once");
    let Request { queries } = serde_json::from_slice(line).context("a line is {\"queries\": [\"…\"]}")?;
    let vectors = encoder.encode(queries.iter().map(|query| format!("{prefix}{query}")).collect())?;
    let row = |row: Tensor| Ok(Vec::<f32>::try_from(row)?);
    (0..queries.len() as i64).map(|number| row(vectors.f_get(number)?)).collect()
}
