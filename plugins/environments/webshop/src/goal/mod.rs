//! A goal: an instruction, and the product that it describes.

pub mod own;

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A goal in the form in which the original engine holds it, and which an exported list has.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(expecting = "a goal")]
pub struct Goal {
    /// The product that the instruction describes.
    pub asin: String,
    /// Its category in one word.
    #[serde(default)]
    pub category: String,
    /// Its query.
    pub query: String,
    /// Its title.
    pub name: String,
    /// Its path of categories.
    pub product_category: String,
    /// The instruction that the policy reads.
    pub instruction_text: String,
    /// Attributes to match; at least one.
    pub attributes: Vec<String>,
    /// The highest price in dollars.
    pub price_upper: f64,
    /// Options to match.
    pub goal_options: Options,
}

/// The options that a goal asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Options {
    /// Names and values, of a synthetic instruction. In JSON an object.
    Named(Vec<(String, String)>),
    /// Values alone, of an instruction that a person wrote. In JSON a list.
    Values(Vec<String>),
}

impl Options {
    /// Number of options.
    pub fn len(&self) -> usize {
        match self {
            Options::Named(pairs) => pairs.len(),
            Options::Values(values) => values.len(),
        }
    }

    /// True if the goal asks for no option.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Options::Named(pairs) => serializer.collect_map(pairs.iter().map(|(name, value)| (name, value))),
            Options::Values(values) => values.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Options, D::Error> {
        deserializer.deserialize_any(OptionsVisitor)
    }
}

struct OptionsVisitor;

impl<'de> Visitor<'de> for OptionsVisitor {
    type Value = Options;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of options and values, or a list of values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Options, A::Error> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        // If a name occurs twice, the last value counts, as in Python.
        while let Some((name, value)) = map.next_entry()? {
            match pairs.iter_mut().find(|(known, _)| *known == name) {
                Some((_, old)) => *old = value,
                None => pairs.push((name, value)),
            }
        }
        Ok(Options::Named(pairs))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Options, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(Options::Values(values))
    }
}
