//! An estimator that asks for every column and writes what it gets to a file, so that a test can compare it with PyTorch.

use std::path::PathBuf;

use anyhow::{Context, Result};
use nestor_plugin::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores, View};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

struct AllColumns {
    config: Config,
    asked: Vec<Asked>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The file to write: one JSON object of the last rows.
    file: PathBuf,
    /// Names of the columns to ask for.
    columns: Vec<String>,
}

impl Estimator for AllColumns {
    const ID: &'static str = "columns";
    const DOC: &'static str = "Writes the columns that it asks for.";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let asked = config.columns.iter().map(|name| name.parse()).collect::<Result<_>>()?;
        Ok(Self { config, asked })
    }

    fn needs(&self) -> Needs {
        Needs { anchors: true, ..Needs::default() }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let mut all = Map::new();
        for (column, view) in rows.asked {
            all.insert(column.to_string(), view.map_or(Value::Null, entries));
        }
        all.insert("episode".into(), json!(rows.episode));
        all.insert("step".into(), json!(rows.step));
        all.insert("token_offsets".into(), json!(rows.token_offsets));
        std::fs::write(&self.config.file, Value::Object(all).to_string()).context("writing the columns")?;
        out.metric("columns", rows.asked.len() as f64);
        out.broadcast(rows, rows.reward);
        Ok(())
    }
}

impl Columns for AllColumns {
    fn columns(&self) -> Vec<Asked> {
        self.asked.clone()
    }
}

impl Parts for AllColumns {
    const NAMES: &'static [&'static str] = &["task_number"];

    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        Ok(vec![rows.task()?.iter().map(|&task| task as f64).collect()])
    }
}

/// The entries of a column; byte strings as texts, NaN as null.
fn entries(view: View<'_>) -> Value {
    match view {
        View::Bytes(strings) => (0..strings.len()).map(|i| json!(String::from_utf8_lossy(strings.of(i)))).collect(),
        View::U8(entries) => json!(entries),
        View::U32(entries) => json!(entries),
        View::U64(entries) => json!(entries),
        View::F32(entries) => json!(entries),
        View::F64(entries) => json!(entries),
    }
}

nestor_plugin::export! { estimators: [AllColumns + parts + columns] }
