//! An expert that knows the goal's product: it searches by the goal's words, opens the product, chooses the options, and buys.

use anyhow::Result;

use crate::catalogue::Catalogue;
use crate::goal::{Goal, Options};
use crate::pages::PER_PAGE;
use crate::product::Product;
use crate::reward::fulfils;
use crate::session::{HITS, Session};

/// The way to the goal's product.
pub struct Plan {
    /// The product to buy.
    product: u32,
    query: String,
    /// Page of results with the product, from 1.
    page: u64,
}

impl Plan {
    /// Looks for a query that shows the product on the first page of results, or else on the earliest: the product's query
    /// with the attributes, also with the options, the title, or the title and the description.
    pub fn new(catalogue: &Catalogue, goal: &Goal) -> Result<Plan> {
        let number = catalogue.store.find(&goal.asin)?;
        let number = anyhow::Context::with_context(number, || format!("the catalogue has no product `{}`", goal.asin))?;
        let product = catalogue.store.product(number)?;
        let words = format!("{} {}", goal.attributes.join(" "), goal.query);
        let values: Vec<&str> = wanted(&product, goal).into_iter().map(|(_, value)| value).collect();
        let queries = [
            words.clone(),
            format!("{words} {}", values.join(" ")),
            product.card.title.to_owned(),
            format!("{} {}", product.card.title, product.description),
        ];
        let mut best = (HITS, String::new());
        for query in queries.map(|query| query.to_lowercase()) {
            let hits = catalogue.search(&query, HITS)?;
            let rank = hits.iter().position(|&hit| hit == number).unwrap_or(HITS);
            if best.1.is_empty() || rank / PER_PAGE < best.0 / PER_PAGE {
                best = (rank, query);
            }
            if best.0 < PER_PAGE {
                break;
            }
        }
        Ok(Plan { product: number, query: best.1, page: (best.0 / PER_PAGE + 1) as u64 })
    }

    /// The next action on the way.
    pub fn next_action(&self, catalogue: &Catalogue, session: &Session) -> Result<String> {
        let page = session.page();
        let Some(actions) = &page.actions else { return Ok(String::new()) };
        let asin = catalogue.store.card(self.product)?.asin.to_lowercase();
        if actions.has_search_bar {
            return Ok(format!("search[{}]", self.query));
        }
        let clicks = |text: &str| actions.clickables.iter().any(|it| it == text);
        let text = if clicks(&asin) {
            asin
        } else if clicks("buy now") {
            self.on_product(catalogue, session)?
        } else if session.keywords() == self.query && session.on_results() && session.number() < self.page {
            "next >".to_owned()
        } else if session.keywords() == self.query && clicks("< prev") {
            "< prev".to_owned()
        } else {
            "back to search".to_owned()
        };
        Ok(format!("click[{text}]"))
    }

    /// The text to click on the page of a product.
    fn on_product(&self, catalogue: &Catalogue, session: &Session) -> Result<String> {
        if session.product() != Some(self.product) {
            let back = if session.keywords() == self.query { "< prev" } else { "back to search" };
            return Ok(back.to_owned());
        }
        let product = catalogue.store.product(self.product)?;
        let chosen = session.options();
        let missing =
            wanted(&product, session.goal()).into_iter().find(|(_, value)| chosen.iter().all(|(_, it)| it != value));
        Ok(missing.map_or("buy now", |(_, value)| value).to_owned())
    }
}

/// The options of the product that the goal asks for: name and value.
fn wanted<'a>(product: &Product<'a>, goal: &Goal) -> Vec<(&'a str, &'a str)> {
    let all = || product.options.iter().flat_map(|(name, values)| values.iter().map(move |value| (*name, *value)));
    match &goal.goal_options {
        Options::Named(pairs) => {
            pairs.iter().filter_map(|pair| all().find(|(name, value)| *name == pair.0 && *value == pair.1)).collect()
        }
        Options::Values(values) => values
            .iter()
            .filter_map(|wish| {
                all().find(|(_, value)| value == wish).or_else(|| all().find(|(_, it)| fulfils(it, wish)))
            })
            .collect(),
    }
}
