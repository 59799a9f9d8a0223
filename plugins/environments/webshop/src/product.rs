//! A product as the shop shows and scores it. Its texts are borrowed from the catalogue's bytes.

use serde::{Deserialize, Serialize};

/// The part of a product that a page of results shows.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Card<'a> {
    /// Number of the product.
    pub asin: &'a str,
    /// Title.
    pub title: &'a str,
    /// The price in words: `$12.31` or `$48.51 to $54.29`.
    pub price_tag: &'a str,
}

/// All of a product.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Product<'a> {
    /// The part that a page of results shows.
    #[serde(borrow)]
    pub card: Card<'a>,
    /// Description.
    pub description: &'a str,
    /// Features.
    pub bullets: Vec<&'a str>,
    /// Category in one word.
    pub category: &'a str,
    /// The query that found the product, in lower case.
    pub query: &'a str,
    /// Path of categories, parted by ` › `.
    pub product_category: &'a str,
    /// Options and their values, in lower case.
    pub options: Vec<(&'a str, Vec<&'a str>)>,
    /// Attributes.
    pub attributes: Vec<&'a str>,
    /// The synthetic instruction, if there is one.
    pub instruction: Option<&'a str>,
    /// The attributes that it asks for.
    pub instruction_attributes: Vec<&'a str>,
    /// Instructions that people wrote.
    pub human: Vec<HumanWords<'a>>,
    /// Lowest and highest price in dollars; equal unless the price is a range.
    pub price_range: (f64, f64),
    /// The nouns of the title, if the file has them.
    pub nouns: Option<Vec<&'a str>>,
}

/// An instruction that a person wrote.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct HumanWords<'a> {
    /// The instruction.
    pub instruction: &'a str,
    /// The attributes that it asks for.
    pub attributes: Vec<&'a str>,
    /// The values of options that it asks for.
    pub options: Vec<&'a str>,
}
