//! `nestor advantage`: runs an estimator on recorded steps.

use std::path::Path;

use anyhow::{Context, Result};
use nestor_plugin::files::{self, LARGE};
use nestor_plugin::recorded::{Columns, Recorded};
use nestor_recipe::input_error;
use serde_json::{Value, json};

use crate::rows::Rows;
use crate::{Asked, Kind, Plugins};
use nestor_recipe::PluginChoice;

/// Scores the steps recorded in a file and returns `{"advantages": [[…per token…], …], "returns": [[…], …]}`, one list
/// per row. `config` is a JSON object. If it does not set `gamma` and the estimator has that key, the file's applies.
pub fn advantage(plugins: &Plugins, estimator: &str, config: &str, rows: &Path) -> Result<Value> {
    let mut config: Value = serde_json::from_str(config).map_err(|e| input_error!("--config is not JSON: {e}"))?;
    let recorded = read(rows)?;
    let found = plugins.find(Kind::Estimator, estimator)?;
    if let (Some(gamma), Some(keys)) = (recorded.gamma, config.as_object_mut())
        && found.schema["properties"].get("gamma").is_some()
    {
        keys.entry("gamma").or_insert(json!(gamma));
    }
    let estimator = plugins.estimator(&PluginChoice::new(estimator, config))?;
    let columns = recorded.columns().map_err(|e| input_error!("{}: {e:#}", rows.display()))?;
    if estimator.needs().values && columns.values.is_none() {
        return Err(input_error!("{}: plugin {} needs `values` in every row", rows.display(), estimator.id()));
    }
    let lacks = |one: &&Asked| !one.optional && columns.named.iter().all(|(column, _)| *column != one.column);
    if let Some(Asked { column, .. }) = estimator.asked().iter().find(lacks) {
        return Err(input_error!(
            "{}: plugin {} needs the column `{column}` in every row",
            rows.display(),
            estimator.id()
        ));
    }
    let mut rows = into_rows(columns);
    estimator.score(&mut rows)?;
    let by_row = |column: &[f32]| -> Vec<Vec<f32>> {
        rows.token_offsets.windows(2).map(|w| column[w[0] as usize..w[1] as usize].to_vec()).collect()
    };
    Ok(json!({ "advantages": by_row(&rows.advantages), "returns": by_row(&rows.returns) }))
}

fn read(path: &Path) -> Result<Recorded> {
    let text = files::read_to_string(path, LARGE)
        .map_err(|e| input_error!("{e}"))
        .with_context(|| format!("reading rows from {}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| input_error!("{} does not hold recorded rows: {e}", path.display()))
}

fn into_rows(columns: Columns) -> Rows {
    let flags = |column: Vec<u8>| -> Vec<bool> { column.into_iter().map(|flag| flag != 0).collect() };
    let bounds = columns.anchor_offsets.windows(2);
    let anchor = bounds.map(|w| columns.anchor_data[w[0] as usize..w[1] as usize].to_vec()).collect();
    Rows {
        group: columns.group,
        episode: columns.episode,
        step: columns.step,
        sequence: columns.sequence,
        span_start: columns.span_start,
        reward: columns.reward,
        penalty: columns.penalty,
        valid: flags(columns.valid),
        terminated: flags(columns.terminated),
        truncated: flags(columns.truncated),
        anchor,
        duplicate_of: columns.duplicate_of,
        token_offsets: columns.token_offsets,
        token_rewards: columns.token_rewards,
        values: columns.values,
        columns: columns.named.into_iter().map(|(column, values)| (column.to_string(), values)).collect(),
        ..Rows::default()
    }
}
