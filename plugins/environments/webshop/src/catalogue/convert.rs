//! A product of the files as the shop shows it, by the rules of the original engine's loader.

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::parse::strip;

use crate::files::{Bullets, HumanInstruction, Instruction, Item, OptionValue};
use crate::product::{Card, HumanWords, Product};

/// The price of a product without one, in dollars.
const NO_PRICE: f64 = 100.0;
/// The attribute of a product without any.
const NO_ATTRIBUTE: &str = "DUMMY_ATTR";
/// Characters of an ASIN.
const ASIN: usize = 10;

/// Texts that are made from an item, which the product borrows.
pub struct Made {
    price_tag: String,
    price_range: (f64, f64),
    query: String,
    options: Vec<(String, Vec<String>)>,
}

/// Buttons whose text has the length of an ASIN, or less. A product with such an ASIN could not be clicked.
const BUTTONS: [&str; 7] = ["search", "buy now", "next >", "< prev", "features", "reviews", "attributes"];

/// True if the loader takes the item.
pub fn counts(item: &Item) -> bool {
    item.asin != "nan" && item.asin.chars().count() <= ASIN
}

impl Made {
    /// Makes the texts.
    pub fn new(item: &Item) -> Result<Made> {
        ensure!(!BUTTONS.contains(&item.asin.to_lowercase().as_str()), "its ASIN is the text of a button: change it");
        let prices = prices(item.pricing.as_deref().unwrap_or_default())?;
        let (price_tag, price_range) = match prices[..] {
            [] => (format!("${}", decimal(NO_PRICE)), (NO_PRICE, NO_PRICE)),
            [price] => (format!("${}", decimal(price)), (price, price)),
            [low, high, ..] => (format!("${} to ${}", decimal(low), decimal(high)), (low, high)),
        };
        let query = strip(&item.query.as_deref().unwrap_or_default().to_lowercase()).to_owned();
        Ok(Made { price_tag, price_range, query, options: options(item)? })
    }

    /// The product of an item.
    pub fn product<'a>(
        &'a self,
        item: &'a Item,
        instruction: Option<&'a Instruction>,
        human: &'a [HumanInstruction],
    ) -> Product<'a> {
        let attributes = instruction.and_then(|it| it.attributes.as_deref());
        let bullets = match &item.small_description {
            None => vec![""],
            Some(Bullets::One(text)) => vec![text.as_str()],
            Some(Bullets::Many(texts)) => borrowed(texts),
        };
        Product {
            card: Card {
                asin: &item.asin,
                title: item.name.as_deref().unwrap_or_default(),
                price_tag: &self.price_tag,
            },
            description: item.full_description.as_deref().unwrap_or_default(),
            bullets,
            category: item.category.as_deref().unwrap_or_default(),
            query: &self.query,
            product_category: item.product_category.as_deref().unwrap_or_default(),
            options: self.options.iter().map(|(name, values)| (name.as_str(), borrowed(values))).collect(),
            attributes: attributes.map_or_else(|| vec![NO_ATTRIBUTE], borrowed),
            instruction: instruction.and_then(|it| it.instruction.as_deref()),
            instruction_attributes: instruction
                .and_then(|it| it.instruction_attributes.as_deref())
                .map_or_else(Vec::new, borrowed),
            human: human.iter().map(human_words).collect(),
            price_range: self.price_range,
            nouns: item.nouns.as_deref().map(borrowed),
        }
    }
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn human_words(human: &HumanInstruction) -> HumanWords<'_> {
    HumanWords {
        instruction: &human.instruction,
        attributes: borrowed(&human.instruction_attributes),
        options: borrowed(&human.instruction_options),
    }
}

/// The numbers after each `$`.
fn prices(text: &str) -> Result<Vec<f64>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let read = |part: &str| {
        let digits: String = part.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
        let price: f64 = digits.parse().ok()?;
        price.is_finite().then_some(price)
    };
    let prices: Option<Vec<f64>> = text.split('$').skip(1).map(read).collect();
    match prices {
        Some(prices) if !prices.is_empty() => Ok(prices),
        _ => {
            let start: String = text.chars().take(30).collect();
            bail!("the price {start:?} is no \"$12.31\" or \"$12.31$20.00\": mend it, or leave it empty for $100")
        }
    }
}

/// A number as Python prints it.
pub fn decimal(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent}"),
        },
    }
}

/// Options in lower case. If a name occurs twice, the second list of values takes the place of the first.
fn options(item: &Item) -> Result<Vec<(String, Vec<String>)>> {
    let mut options: Vec<(String, Vec<String>)> = Vec::new();
    for (name, values) in item.customization_options.iter().flatten() {
        let values: Option<Vec<OptionValue>> =
            serde_json::from_value(values.clone()).with_context(|| format!("option `{name}`"))?;
        let Some(values) = values else { continue };
        let values = values.iter().map(|it| strip(&it.value).replace('/', " | ").to_lowercase()).collect();
        let name = name.to_lowercase();
        match options.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = values,
            None => options.push((name, values)),
        }
    }
    Ok(options)
}

/// The text that is searched: title, description, first feature and options, in lower case.
pub fn contents(product: &Product<'_>) -> String {
    let first = product.bullets.first().copied().unwrap_or_default();
    let options: Vec<String> =
        product.options.iter().map(|(name, values)| format!("{name}: {}", values.join(", "))).collect();
    [product.card.title, product.description, first, &options.join(", and ")].join(" ").to_lowercase()
}
