//! Invented catalogues in the form of the real files, of any size.
//!
//! Product `n` depends on seed, size and `n` alone, so a catalogue of 1,000 products is the beginning of one of 10,000.
//! Brands, texts and prices are made up. The files have the oddities of the real ones: prices that are missing or a
//! range, options that are null, features in one text, and values of options such as `z1-black` or `3 feet / 1 m`.
//!
//! A few goals cannot be reached, as in the real data. The rule for colours takes `standard` for `tan`, so a synthetic
//! goal that asks for `standard` never finds it.

mod asin;
mod dice;
mod offer;
mod shop;
mod tables;
#[cfg(test)]
mod tests;
mod words;
mod write;

pub use write::write;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::files::{HumanInstruction, Instruction, Item};
use dice::{Dice, Part};
use shop::{Kind, Shop};
use tables::list;

/// The largest catalogue.
pub const MOST_PRODUCTS: u64 = 2_000_000;

/// Describes a catalogue to generate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Number of products, from 1 to 2000000.
    #[schemars(range(min = 1, max = 2_000_000))]
    pub products: u64,
    /// Another seed gives other products.
    #[serde(default)]
    pub seed: u64,
    /// Size of texts and tables.
    #[serde(default)]
    pub size: Size,
}

/// Size of the texts and tables of a catalogue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// Eight kinds of product, short texts and about 140 words, for a small network.
    Small,
    /// As in the real data: 49 kinds of product, up to three options, long texts.
    #[default]
    Real,
}

impl Size {
    fn shop(self) -> &'static Shop {
        match self {
            Size::Small => &tables::small::SHOP,
            Size::Real => &tables::real::SHOP,
        }
    }
}

/// A generated product, with its entries in the three files.
#[derive(Debug, Clone)]
pub struct Generated {
    /// The product.
    pub item: Item,
    /// Its brand, which only the file of products names by itself.
    pub brand: String,
    /// Its attributes and its synthetic instruction.
    pub instruction: Instruction,
    /// The instructions in the style of people; often none.
    pub human: Vec<HumanInstruction>,
}

/// Makes the products of a catalogue.
pub struct Generator {
    spec: Spec,
    shop: &'static Shop,
    /// Turns the numbers of products into ASINs.
    key: u64,
}

/// The part of a product that its near-duplicates share.
struct Core {
    category: &'static str,
    kind: &'static Kind,
    brand: String,
    attributes: Vec<&'static str>,
}

impl Generator {
    /// Refuses an empty catalogue and one that is too large.
    pub fn new(spec: Spec) -> Result<Generator> {
        ensure!(
            (1..=MOST_PRODUCTS).contains(&spec.products),
            "a catalogue of {} products cannot be generated: ask for 1 to {MOST_PRODUCTS}",
            spec.products
        );
        // An odd factor, so that neighbouring seeds give ASINs far apart.
        let key = (spec.seed.wrapping_mul(2) + spec.size as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Ok(Generator { shop: spec.size.shop(), key, spec })
    }

    /// Describes the catalogue.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// All products, in their order in the file.
    pub fn products(&self) -> impl Iterator<Item = Generated> + '_ {
        (0..self.spec.products).map(|n| self.product(n))
    }

    /// Product `n`, counted from 0.
    pub fn product(&self, n: u64) -> Generated {
        let (shop, habits) = (self.shop, &self.shop.habits);
        let mut dice = self.dice(n, Part::Rest);
        let near = n > 0 && dice.chance(habits.near_duplicate);
        let model = if near { dice.below(n as usize) as u64 } else { n };
        let core = Core::draw(shop, &mut self.dice(model, Part::Core));

        let texts = words::texts(shop, &core, &mut dice);
        let options = offer::options(habits, core.kind, &mut dice);
        let item = Item {
            asin: match self.spec.size {
                Size::Small => asin::short(self.key, n),
                Size::Real => asin::asin(self.key, n),
            },
            name: Some(texts.title),
            full_description: Some(texts.description),
            small_description: Some(texts.bullets),
            pricing: offer::pricing(habits, core.kind, &mut dice),
            product_category: Some(core.kind.path.to_owned()),
            category: Some(core.category.to_owned()),
            query: Some(core.kind.query.to_owned()),
            customization_options: offer::in_file(&options, &mut dice),
            nouns: None,
        };
        let instruction = words::instruction(shop, &core, &mut dice);
        let human = words::human(shop, &core, &options, &mut dice);
        Generated { item, brand: core.brand, instruction, human }
    }

    fn dice(&self, n: u64, part: Part) -> Dice {
        Dice::new(self.spec.seed, self.spec.size, n, part)
    }
}

impl Core {
    fn draw(shop: &Shop, dice: &mut Dice) -> Core {
        let kinds: Vec<_> = shop.kinds().collect();
        let (category, kind) = dice.pick(&kinds);
        let brand = dice.pick_of(list(shop.brands.0)).to_owned() + dice.pick_of(list(shop.brands.1));
        let count = dice.between(&shop.habits.attributes);
        let mut attributes = dice.some_of(count, list(kind.attributes));
        dice.shuffle(&mut attributes);
        Core { category, kind, brand, attributes }
    }
}
