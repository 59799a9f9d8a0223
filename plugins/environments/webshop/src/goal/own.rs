//! Goals by a rule of our own. The original engine draws them with Python's generator; an exported list has those.
//!
//! - A synthetic goal is one combination of a product's option values. Its text is the product's instruction, the options
//!   and the highest price.
//! - The highest price is drawn from the first four multiples of 10 dollars above the product's price: two different ones
//!   at random, the larger. Beyond $990 there is none.
//! - Goals are in the order of a hash of ASIN and option values ([`crate::draw`]), so the order of files has no effect.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::{Goal, Options};
use crate::draw;
use crate::product::Product;

/// The highest price where the instruction names none, in dollars.
const NO_LIMIT: f64 = 1_000_000.0;
/// The most combinations of one product. A list of options that was damaged could otherwise fill any memory.
const MOST_COMBINATIONS: u32 = 1_000_000;
/// The highest limit that an instruction names, in dollars.
const TOP: u32 = 990;

/// Number of a product's synthetic goals.
pub fn synthetic_count(product: &Product<'_>) -> Result<u32> {
    if product.instruction.is_none() || product.instruction_attributes.is_empty() {
        return Ok(0);
    }
    let count = product
        .options
        .iter()
        .try_fold(1_u32, |count, (_, values)| count.checked_mul(u32::try_from(values.len()).ok()?));
    let count = count.filter(|&count| count <= MOST_COMBINATIONS);
    count.with_context(|| {
        format!("its options have more than {MOST_COMBINATIONS} combinations, each of which is a goal: remove values")
    })
}

/// The combination with this number: a value for each option, in the order of their names. The last option varies first.
pub fn combination<'a>(product: &Product<'a>, which: u32) -> Vec<(&'a str, &'a str)> {
    let mut options: Vec<_> = product.options.iter().collect();
    options.sort_unstable_by_key(|(name, _)| *name);
    let mut rest = which as usize;
    let mut chosen: Vec<_> = options
        .iter()
        .rev()
        .map(|(name, values)| {
            let value = values[rest % values.len()];
            rest /= values.len();
            (*name, value)
        })
        .collect();
    chosen.reverse();
    chosen
}

/// A synthetic goal of a product that costs `price` dollars.
pub fn synthetic(product: &Product<'_>, which: u32, price: f64) -> Goal {
    let chosen = combination(product, which);
    let mut text = product.instruction.unwrap_or_default().to_owned();
    for (at, (name, value)) in chosen.iter().enumerate() {
        let lead = if at == 0 { " with " } else { ", and " };
        write!(text, "{lead}{name}: {value}").expect("a string takes any text");
    }
    let options = chosen.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let limit = limit(price, &[product.card.asin]);
    goal(product, text, limit, &product.instruction_attributes, Options::Named(options))
}

/// The goal of an instruction that a person wrote.
pub fn human(product: &Product<'_>, which: u32, price: f64) -> Result<Goal> {
    let words = product.human.get(which as usize).context("the catalogue's index is damaged: build it again")?;
    let limit = limit(price, &[product.card.asin, words.instruction]);
    let options = words.options.iter().map(|&value| value.to_owned()).collect();
    let text = words.instruction.trim_matches('.').to_owned();
    Ok(goal(product, text, limit, &words.attributes, Options::Values(options)))
}

fn goal(
    product: &Product<'_>,
    mut text: String,
    limit: Option<f64>,
    attributes: &[&str],
    goal_options: Options,
) -> Goal {
    if let Some(limit) = limit {
        write!(text, ", and price lower than {limit:.2} dollars").expect("a string takes any text");
    }
    Goal {
        asin: product.card.asin.to_owned(),
        category: product.category.to_owned(),
        query: product.query.to_owned(),
        name: product.card.title.to_owned(),
        product_category: product.product_category.to_owned(),
        instruction_text: text,
        attributes: attributes.iter().map(|&it| it.to_owned()).collect(),
        price_upper: limit.unwrap_or(NO_LIMIT),
        goal_options,
    }
}

/// Draws the highest price above a price.
fn limit(price: f64, names: &[&str]) -> Option<f64> {
    let above: Vec<f64> = (1..=TOP / 10).map(|tens| f64::from(10 * tens)).filter(|&it| it > price).take(4).collect();
    let pairs: Vec<f64> = (1..above.len()).flat_map(|high| std::iter::repeat_n(above[high], high)).collect();
    let drawn = draw::fraction("price limit", names) * pairs.len() as f64;
    pairs.get(drawn as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_among_the_next_four_tens() {
        for n in 0..200 {
            let limit = limit(37.5, &[&n.to_string()]).unwrap();
            assert!([50.0, 60.0, 70.0].contains(&limit), "{limit}");
        }
        assert_eq!(limit(980.0, &["x"]), None);
        assert_eq!(limit(979.0, &["x"]), Some(990.0));
    }
}
