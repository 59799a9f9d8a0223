//! The reward of a purchase: how well the product, the chosen options and the price fit a goal.
//!
//! It follows the original engine (`web_agent_site/engine/goal.py`) value for value, with one exception: that engine finds
//! nouns with a model, and [`nouns()`] says what replaces it.

mod color;
mod fuzz;
mod lines;
mod nouns;
mod options;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde_json::{Map, Value};

pub use color::normalize_color;
pub use fuzz::token_set_ratio;
pub use lines::score_lines;
pub use nouns::nouns;
pub use options::fulfils;

use crate::goal::Goal;
use crate::product::Product;

/// A product with the options that were chosen.
#[derive(Debug, Clone, Copy)]
pub struct Purchase<'a> {
    /// The product.
    pub product: &'a Product<'a>,
    /// Its price in dollars: of a range, the price that was drawn.
    pub price: f64,
    /// Chosen options: names and values. Only values count.
    pub options: &'a [(String, String)],
}

/// The reward of a purchase and its parts, under the names of the original engine. A weight is the part's share of `score`.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The reward, from 0 to 1: the weighted parts times `r_type`.
    pub score: f64,
    /// 1.0 for the type of product that was asked for, else 0.5, 0.1 or 0.0.
    pub r_type: f64,
    /// Share of the attributes that the product has.
    pub r_att: f64,
    /// Weight of the attributes.
    pub w_att: f64,
    /// True if the same query found both products.
    pub query_match: bool,
    /// True if the paths of both products share two categories.
    pub category_match: bool,
    /// Share of the nouns of the goal's title that the product's title has.
    pub title_score: f64,
    /// Share of the options that were chosen; nothing if the goal asks for none.
    pub r_option: Option<f64>,
    /// Weight of the options; nothing if the goal asks for none.
    pub w_option: Option<f64>,
    /// True if the price is not over the goal's limit.
    pub r_price: bool,
    /// Weight of the price.
    pub w_price: f64,
}

impl Score {
    /// The parts as an episode's `info` has them: all but `score`, without those of options if the goal asks for none.
    pub fn parts(&self) -> Map<String, Value> {
        let mut parts = Map::new();
        let mut set = |name: &str, value: Value| parts.insert(name.to_string(), value);
        set("r_type", self.r_type.into());
        set("r_att", self.r_att.into());
        set("w_att", self.w_att.into());
        set("query_match", self.query_match.into());
        set("category_match", self.category_match.into());
        set("title_score", self.title_score.into());
        if let (Some(r_option), Some(w_option)) = (self.r_option, self.w_option) {
            set("r_option", r_option.into());
            set("w_option", w_option.into());
        }
        set("r_price", self.r_price.into());
        set("w_price", self.w_price.into());
        parts
    }
}

/// Scores a purchase. `goal_nouns` are those that the catalogue has for the goal's product, if it has them.
///
/// The goal must have an attribute: the original engine fails without one.
pub fn score(purchase: &Purchase, goal: &Goal, goal_nouns: Option<&[&str]>) -> Score {
    let product = purchase.product;
    let query_match = product.query == goal.query;
    let category_match = common_categories(product.product_category, &goal.product_category) >= 2;
    let title_score = title_score(&nouns(product.nouns.as_deref(), product.card.title), &nouns(goal_nouns, &goal.name));
    let r_type = match title_score {
        0.0 => 0.0,
        ..0.1 => 0.1,
        _ if query_match || category_match || title_score > 0.2 => 1.0,
        _ => 0.5,
    };

    let (attributes, options) = (goal.attributes.len(), goal.goal_options.len());
    let attribute_hits = attribute_hits(product, &goal.attributes);
    let option_hits = options::hits(purchase.options, &goal.goal_options);
    let r_price = purchase.price <= goal.price_upper;

    let share = |hits: usize, all: usize| hits as f64 / all as f64;
    let all = attributes + options + 1;
    Score {
        score: share(attribute_hits + option_hits + usize::from(r_price), all) * r_type,
        r_type,
        r_att: share(attribute_hits, attributes),
        w_att: share(attributes, all),
        query_match,
        category_match,
        title_score,
        r_option: (options > 0).then(|| share(option_hits, options)),
        w_option: (options > 0).then(|| share(options, all)),
        r_price,
        w_price: share(1, all),
    }
}

/// True if two texts are alike enough to count as a hit.
fn similar(a: &str, b: &str) -> bool {
    token_set_ratio(a, b) > 85
}

/// Number of attributes that resemble one of the product's, or are part of its texts.
fn attribute_hits(product: &Product, wanted: &[String]) -> usize {
    let texts = [
        product.card.title.to_lowercase(),
        product.bullets.join(" ").to_lowercase(),
        product.description.to_lowercase(),
    ];
    let resembles = |wanted: &str| product.attributes.iter().any(|attribute| similar(attribute, wanted));
    wanted.iter().filter(|wanted| resembles(wanted) || texts.iter().any(|text| text.contains(wanted.as_str()))).count()
}

/// Number of different categories that are in both paths, whatever their order. An empty path has one category without a name.
fn common_categories(a: &str, b: &str) -> usize {
    // Python also strips the four information separators of ASCII.
    let blank = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let categories = |path| -> HashSet<_> { str::split(path, '›').map(|part| part.trim_matches(blank)).collect() };
    categories(a).intersection(&categories(b)).count()
}

/// Share of the goal's nouns that the title has. A repeated noun adds to the nouns of the goal, but is found once only.
fn title_score(title: &[String], goal: &[String]) -> f64 {
    if goal.is_empty() {
        return 0.2;
    }
    let title: HashSet<_> = title.iter().collect();
    let found: HashSet<_> = goal.iter().filter(|noun| title.contains(noun)).collect();
    found.len() as f64 / goal.len() as f64
}
