//! Scores of purchases that lines of JSON describe, to compare the reward with other code.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Purchase, score};
use crate::goal::Goal;
use crate::product::Product;

/// A line of input.
#[derive(Deserialize)]
struct Choice {
    goal: Goal,
    /// The product to buy.
    asin: String,
    /// Chosen options and their values.
    #[serde(default)]
    options: BTreeMap<String, String>,
}

/// Reads lines such as `{"goal": {...}, "asin": "B0...", "options": {"color": "red"}}` and writes for each an object with the
/// parts of the reward and the total `score`. A goal has the form of an exported list.
///
/// `find` gives the price in dollars and the product of an ASIN, or nothing if the catalogue has no such product.
///
/// # Errors
/// If a line is no such object, if its goal has no attribute or no positive limit of the price, or if the catalogue lacks one of
/// the two products; the message has the line's number.
pub fn score_lines<'c>(
    input: impl BufRead,
    mut out: impl Write,
    find: impl Fn(&str) -> Result<Option<(f64, Product<'c>)>>,
) -> Result<()> {
    for (index, line) in input.lines().enumerate() {
        let parts = line
            .context("cannot read the line")
            .and_then(|line| score_line(&line, &find))
            .with_context(|| format!("line {} of the choices", index + 1))?;
        writeln!(out, "{parts}").context("cannot write a score")?;
    }
    Ok(())
}

fn score_line<'c>(line: &str, find: &impl Fn(&str) -> Result<Option<(f64, Product<'c>)>>) -> Result<serde_json::Value> {
    let Choice { goal, asin, options } = serde_json::from_str(line).context("no object of goal, asin and options")?;
    ensure!(!goal.attributes.is_empty(), "the goal has no attribute; give it at least one");
    ensure!(goal.price_upper > 0.0, "the goal's price_upper is {}; give a price above 0", goal.price_upper);
    let product = |asin: &str| {
        find(asin)?.with_context(|| format!("the catalogue has no product {asin}; take an ASIN of its products file"))
    };
    let (price, bought) = product(&asin)?;
    let (_, target) = product(&goal.asin)?;

    let options: Vec<_> = options.into_iter().collect();
    let purchase = Purchase { product: &bought, price, options: &options };
    let score = score(&purchase, &goal, target.nouns.as_deref());
    let mut line = score.parts();
    line.insert("score".to_string(), score.score.into());
    Ok(line.into())
}
