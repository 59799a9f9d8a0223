//! The rules by which a shop of one size is filled.

use std::ops::RangeInclusive;

/// Tables, sentences and habits of a shop.
pub struct Shop {
    /// The departments and their kinds of product.
    pub departments: &'static [&'static Department],
    /// A brand is an entry of the first list followed by one of the second.
    pub brands: (&'static str, &'static str),
    /// Sentences.
    pub sentences: Sentences,
    /// Numbers and chances.
    pub habits: Habits,
}

/// A department of the shop.
pub struct Department {
    /// Category in one word.
    pub category: &'static str,
    /// The kinds of product in it.
    pub kinds: &'static [Kind],
}

/// A kind of product.
pub struct Kind {
    /// Path of categories, parted by ` › `.
    pub path: &'static str,
    /// The query that finds it, in lower case.
    pub query: &'static str,
    /// Its name in titles.
    pub noun: &'static str,
    /// Lowest and highest price in whole dollars.
    pub dollars: (u32, u32),
    /// Attributes that a product of this kind may have.
    pub attributes: &'static str,
    /// Names of options and the values that each may have. No two options of a kind share a value.
    pub options: &'static [(&'static str, &'static str)],
}

/// Templates of texts, one of which is drawn.
///
/// `{brand}`, `{noun}`, `{query}` and `{tail}` are replaced. So are `{attribute}` (the first one), `{more}` (the
/// others, a comma before each), `{attributes}` (all, parted by commas) and `{options}` (values, a comma before each).
pub struct Sentences {
    /// Titles.
    pub titles: &'static [&'static str],
    /// Ends of titles.
    pub tails: &'static [&'static str],
    /// First sentences of descriptions.
    pub descriptions: &'static [&'static str],
    /// Further sentences of descriptions.
    pub remarks: &'static [&'static str],
    /// Features.
    pub bullets: &'static [&'static str],
    /// Features without an attribute.
    pub promises: &'static [&'static str],
    /// Synthetic instructions.
    pub instructions: &'static [&'static str],
    /// Instructions as people write them.
    pub people: &'static [&'static str],
}

/// Numbers and chances.
pub struct Habits {
    /// Attributes of a product.
    pub attributes: RangeInclusive<usize>,
    /// Attributes that its title names.
    pub in_title: RangeInclusive<usize>,
    /// Attributes that an instruction names; a number that is twice in the list is drawn twice as often.
    pub asked: &'static [usize],
    /// Values of an option.
    pub values: RangeInclusive<usize>,
    /// Prices are the lowest of the kind plus a multiple of this number of cents; low ones come more often.
    pub price_step: u32,
    /// Chance that the price is a range.
    pub price_range: f64,
    /// Chance that there is no price.
    pub no_price: f64,
    /// True if titles start words with a capital letter.
    pub capitals: bool,
    /// Chance that a product is a near-duplicate of one with a lower number.
    pub near_duplicate: f64,
    /// Chance that a product has no options.
    pub no_options: f64,
    /// Chance that an option is left out.
    pub option_left_out: f64,
    /// Chance that an option is null.
    pub option_null: f64,
    /// Chance that the description is empty.
    pub no_description: f64,
    /// Chance that the features are one text instead of a list.
    pub one_bullet: f64,
    /// Chance of a synthetic instruction.
    pub instruction: f64,
    /// Chance of an instruction that a person wrote, and of a second one after it.
    pub human: f64,
}

impl Shop {
    /// All kinds of product, each with its category.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &'static Kind)> {
        self.departments.iter().flat_map(|department| department.kinds.iter().map(|kind| (department.category, kind)))
    }
}
