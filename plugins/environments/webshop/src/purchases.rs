//! Scores purchases that are given as JSON, for checks against other implementations of the reward.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::catalogue::Catalogue;
use crate::goal::{Goal, Options};
use crate::score_purchase;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    goal: Goal,
    asin: String,
    options: Options,
}

/// Scores a purchase, an object of `goal`, `asin` and `options` (values by name). Returns the parts and their `score`.
pub fn score(catalogue: &Catalogue, line: &str) -> Result<Map<String, Value>> {
    let line: Line = serde_json::from_str(line)?;
    let product = catalogue.store.find(&line.asin)?;
    let product = product.with_context(|| format!("the catalogue has no product `{}`", line.asin))?;
    let Options::Named(options) = line.options else { anyhow::bail!("options must be an object of values by name") };
    let (_, score) = score_purchase(catalogue, &line.goal, product, &options)?;
    let mut parts = score.parts();
    parts.insert("score".into(), score.score.into());
    Ok(parts)
}
