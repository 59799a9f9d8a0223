//! WebShop's own files, in the form in which they are published: products, their instructions, and the instructions that
//! people wrote.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// A product of `items_shuffle.json`, with the fields that count. Further fields of the file are ignored.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(expecting = "a product")]
pub struct Item {
    /// Amazon's number of the product, such as `B07MQWPFNW`.
    pub asin: String,
    /// Title.
    pub name: Option<String>,
    /// Description.
    pub full_description: Option<String>,
    /// Features.
    pub small_description: Option<Bullets>,
    /// Price: `$12.31`, a range `$48.51$54.29`, or nothing.
    pub pricing: Option<String>,
    /// Path of categories, parted by ` › `.
    pub product_category: Option<String>,
    /// Category in one word.
    pub category: Option<String>,
    /// The query that found the product when the data was collected.
    pub query: Option<String>,
    /// Options by name, in the order of the file. An option without values is null. Some products have an empty text in place of
    /// none.
    #[serde(default, deserialize_with = "options_or_nothing")]
    pub customization_options: Option<Map<String, Value>>,
    /// Nestor's addition: the nouns of the title in lower case, with repetitions. Without it a rule finds them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nouns: Option<Vec<String>>,
}

/// Options; none for what Python takes for false, as the shop does.
fn options_or_nothing<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Map<String, Value>>, D::Error> {
    match Value::deserialize(from)? {
        Value::Object(options) => Ok(Some(options)),
        Value::Null | Value::Bool(false) => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::Array(items) if items.is_empty() => Ok(None),
        Value::Number(number) if number.as_f64() == Some(0.0) => Ok(None),
        other => Err(serde::de::Error::custom(format!("{} in place of an object of options", short(&other)))),
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

/// Features of a product.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(untagged, expecting = "small_description is neither a text nor a list of texts")]
pub enum Bullets {
    /// One text.
    One(String),
    /// A text for each feature.
    Many(Vec<String>),
}

/// A value of an option.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(expecting = "an object with a value")]
pub struct OptionValue {
    /// The text to click.
    pub value: String,
}

/// An entry of `items_ins_v2.json`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(expecting = "an object with attributes and an instruction")]
pub struct Instruction {
    /// Attributes of the product.
    pub attributes: Option<Vec<String>>,
    /// The synthetic instruction.
    pub instruction: Option<String>,
    /// The attributes that it asks for.
    pub instruction_attributes: Option<Vec<String>>,
}

/// An entry in a list of `items_human_ins.json`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(expecting = "an instruction with attributes and options")]
pub struct HumanInstruction {
    /// The instruction that a person wrote.
    pub instruction: String,
    /// The attributes that it asks for.
    pub instruction_attributes: Vec<String>,
    /// The values of options that it asks for.
    pub instruction_options: Vec<String>,
}

/// `items_ins_v2.json`: instructions by ASIN.
pub type Instructions = BTreeMap<String, Instruction>;
/// `items_human_ins.json`: lists of instructions by ASIN.
pub type HumanInstructions = BTreeMap<String, Vec<HumanInstruction>>;
