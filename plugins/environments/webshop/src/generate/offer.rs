//! Options and prices.

use serde_json::{Map, Value, json};

use super::dice::Dice;
use super::shop::{Habits, Kind};
use super::tables::list;

/// Options by name, with the values as sellers write them. An option without values is null in the file.
pub type Options = Vec<(&'static str, Vec<&'static str>)>;

/// Draws the options of a product.
pub fn options(habits: &Habits, kind: &Kind, dice: &mut Dice) -> Options {
    if dice.chance(habits.no_options) {
        return Options::new();
    }
    let mut options = Options::new();
    for (name, values) in kind.options {
        if dice.chance(habits.option_left_out) {
            continue;
        }
        let count = if dice.chance(habits.option_null) { 0 } else { dice.between(&habits.values) };
        options.push((name, dice.some_of(count, list(values))));
    }
    options
}

/// The options in the form of the file. Without options that is an empty object or null.
pub fn in_file(options: &Options, dice: &mut Dice) -> Option<Map<String, Value>> {
    if options.is_empty() && dice.chance(0.5) {
        return None;
    }
    let values = |values: &[&str]| match values {
        [] => Value::Null,
        values => values.iter().map(|value| json!({"value": value, "image": null})).collect(),
    };
    Some(options.iter().map(|(name, of)| ((*name).to_owned(), values(of))).collect())
}

/// Draws the price: `$12.31`, a range `$48.51$54.29`, or one of the two forms of nothing.
pub fn pricing(habits: &Habits, kind: &Kind, dice: &mut Dice) -> Option<String> {
    if dice.chance(habits.no_price) {
        return dice.chance(0.5).then(String::new);
    }
    let price = draw_price(habits, kind, dice);
    let mut text = in_dollars(price);
    if dice.chance(habits.price_range) {
        let percent = dice.between(&(5..=80)) as u32;
        text += &in_dollars(price + price * percent / 100);
    }
    Some(text)
}

/// A price in cents. Squaring the fraction makes low prices more frequent.
fn draw_price(habits: &Habits, kind: &Kind, dice: &mut Dice) -> u32 {
    let (low, high) = (100 * kind.dollars.0, 100 * kind.dollars.1);
    let steps = (high - low) / habits.price_step + 1;
    let drawn = (dice.fraction().powi(2) * f64::from(steps)) as u32;
    low + drawn * habits.price_step
}

/// `$12.31`, or `$1,499.00`: the shop writes thousands with a comma.
fn in_dollars(cents: u32) -> String {
    let (dollars, cents) = (cents / 100, cents % 100);
    match (dollars / 1000, dollars % 1000) {
        (0, dollars) => format!("${dollars}.{cents:02}"),
        (thousands, dollars) => format!("${thousands},{dollars:03}.{cents:02}"),
    }
}
