//! Pages of the shop as lists of fields: the texts that the original engine finds in its HTML, in their order.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use anyhow::Result;
use nestor_plugin::parse::strip;
use serde::Serialize;
use serde_json::json;

use crate::catalogue::Catalogue;
use crate::catalogue::convert::decimal;
use crate::product::Product;

/// Joins the fields of a page.
pub const SEPARATOR: &str = " [SEP] ";
/// Products on a page of results.
pub const PER_PAGE: usize = 10;

/// A page: its texts, and the things to click.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    fields: Vec<String>,
    /// Number of fields before those that [`Page::body`] has: title, `Instruction:`, and the instruction.
    head: usize,
    /// The actions that it offers; none after the purchase.
    pub actions: Option<Actions>,
}

/// The actions that a page offers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Actions {
    /// The page has a search bar.
    pub has_search_bar: bool,
    /// Texts to click.
    pub clickables: Vec<String>,
}

impl Page {
    /// The whole text.
    pub fn text(&self) -> String {
        self.fields.join(SEPARATOR)
    }

    /// The text after the instruction, with each field in quotes. A page without an instruction is whole and without quotes.
    pub fn body(&self) -> String {
        if self.head == 0 {
            return self.text();
        }
        let mut body = String::new();
        for field in &self.fields[self.head..] {
            let lead = if body.is_empty() { "'" } else { " [SEP] '" };
            body.push_str(lead);
            // A field that contains the separator counts as several.
            body.push_str(&field.replace(SEPARATOR, "' [SEP] '"));
            body.push('\'');
        }
        body
    }

    /// The page on which an episode starts: a search bar and the instruction.
    pub fn start(instruction: &str) -> Page {
        let mut page = Page::default();
        page.node("WebShop");
        page.instruction(instruction);
        page.node("Search");
        page.actions = Some(Actions { has_search_bar: true, clickables: vec!["search".into()] });
        page
    }

    /// A page of results, counted from 1. `hits` are the products of all pages.
    pub fn results(catalogue: &Catalogue, instruction: &str, hits: &[u32], number: u64) -> Result<Page> {
        let mut page = Page::headed(instruction);
        let mut clickables = page.buttons(&["Back to Search"]);
        page.node(&format!("Page {number} (Total results: {})", hits.len()));
        let turn: &[&str] = if number > 1 { &["< Prev", "Next >"] } else { &["Next >"] };
        clickables.extend(page.buttons(turn));
        let first = number.checked_sub(1).and_then(|before| usize::try_from(before).ok());
        let first = first.and_then(|before| before.checked_mul(PER_PAGE)).unwrap_or(usize::MAX);
        for &hit in hits.iter().skip(first).take(PER_PAGE) {
            let card = catalogue.store.card(hit)?;
            page.node(card.asin);
            page.node(card.title);
            page.node(card.price_tag);
            clickables.push(card.asin.to_lowercase());
        }
        page.actions = Some(Actions { has_search_bar: false, clickables });
        Ok(page)
    }

    /// The page of a product. Chosen options are not visible.
    pub fn item(instruction: &str, product: &Product<'_>) -> Page {
        let mut page = Page::headed(instruction);
        let mut clickables = page.buttons(&["Back to Search", "< Prev"]);
        for (name, values) in &product.options {
            page.node(name);
            for value in values {
                page.node(value);
            }
        }
        page.node(product.card.title);
        page.node(&format!("Price: {}", product.card.price_tag));
        page.node("Rating: N.A.");
        clickables.extend(page.buttons(&["Description", "Features", "Reviews", "Buy Now"]));
        let (buttons, mut seen) = (clickables.len(), HashSet::new());
        for value in product.options.iter().flat_map(|(_, values)| values) {
            if seen.insert(value) && !clickables[..buttons].iter().any(|it| it == value) {
                clickables.push((*value).to_owned());
            }
        }
        page.actions = Some(Actions { has_search_bar: false, clickables });
        page
    }

    /// One of the pages behind a product's page.
    pub fn detail(instruction: &str, product: &Product<'_>, detail: Detail) -> Page {
        let mut page = Page::headed(instruction);
        let clickables = page.buttons(&["Back to Search", "< Prev"]);
        match detail {
            Detail::Description => page.node(product.description),
            Detail::Features => product.bullets.iter().for_each(|text| page.node(&format!(" {text}"))),
            // No file has reviews.
            Detail::Reviews => {}
            Detail::Attributes => {
                product.attributes.iter().for_each(|text| page.node(&format!(" {text}")));
                [product.category, product.query, product.product_category].iter().for_each(|text| page.node(text));
            }
        }
        page.actions = Some(Actions { has_search_bar: false, clickables });
        page
    }

    /// The page after the purchase, with what was bought and the score.
    pub fn done(asin: &str, options: &[(String, String)], score: f64) -> Page {
        let (options, score) = (options_in_html(options), decimal(score));
        let fields = [
            ["Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"].as_slice(),
            &["Purchased", "asin", asin, "options", &options, "attrs", "None", "category", "None"],
            &["query", "None", "product category", "None"],
            &["Target", "asin", "options", "attrs", "price upper", "instuction text", "category", "product category"],
            &["query", "Goal", "None", "Reward", "Your score (min 0.0, max 1.0)", &score, "Reward Details", "None"],
        ];
        Page { fields: fields.concat().into_iter().map(str::to_owned).collect(), head: 0, actions: None }
    }

    fn headed(instruction: &str) -> Page {
        let mut page = Page::default();
        page.instruction(instruction);
        page
    }

    fn instruction(&mut self, instruction: &str) {
        self.node("Instruction:");
        self.node(instruction);
        self.head = self.fields.len();
    }

    /// Adds the text of an HTML node. An empty one has no node; the parser keeps white space as one blank or, with a line
    /// break in it, as a line break, which is no field.
    fn node(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let blank = text.bytes().all(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\x0c' | b'\r'));
        if !(blank && text.contains('\n')) {
            self.fields.push(strip(text).to_owned());
        }
    }

    /// Adds buttons, and returns the texts to click.
    fn buttons(&mut self, texts: &[&str]) -> Vec<String> {
        texts.iter().for_each(|text| self.node(text));
        texts.iter().map(|text| text.to_lowercase()).collect()
    }
}

/// A page behind that of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The description.
    Description,
    /// The list of features.
    Features,
    /// Reviews, of which there are none.
    Reviews,
    /// Attributes and categories. No button leads there, but an option with this value does.
    Attributes,
}

impl Detail {
    /// The page that a click on this text opens.
    pub fn from_click(text: &str) -> Option<Detail> {
        match text {
            "description" => Some(Detail::Description),
            "features" => Some(Detail::Features),
            "reviews" => Some(Detail::Reviews),
            "attributes" => Some(Detail::Attributes),
            _ => None,
        }
    }
}

/// Options as JSON, as Flask writes it into HTML: sorted, in ASCII, without the characters that mean something in HTML.
fn options_in_html(options: &[(String, String)]) -> String {
    let options: BTreeMap<&str, &str> = options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let pairs: Vec<String> = options.iter().map(|(name, value)| format!("{}: {}", json!(name), json!(value))).collect();
    let mut out = String::from("{");
    let mut units = [0; 2];
    for c in pairs.join(", ").chars() {
        match c {
            '<' | '>' | '&' | '\'' | '\x7f'.. => {
                for unit in c.encode_utf16(&mut units) {
                    write!(out, "\\u{unit:04x}").expect("a string takes any text");
                }
            }
            _ => out.push(c),
        }
    }
    out + "}"
}
