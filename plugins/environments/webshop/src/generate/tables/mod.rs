//! Tables of invented products. Every list is one text, its entries parted by a comma and a space.

mod beauty;
mod electronics;
mod fashion;
mod garden;
mod grocery;
pub mod real;
pub mod small;

/// The entries of a list.
pub fn list(text: &'static str) -> impl Iterator<Item = &'static str> + Clone {
    text.split(", ")
}

/// One-word and two-word colours.
const PLAIN: &str =
    "black, white, red, navy, grey, beige, brown, dark green, light blue, wine, khaki, purple, silver, rose pink";
/// Colours as sellers write them: codes, pairs, prints.
const FANCY: &str = "z1-black, a-blue, 03-army green, b2 wine red, navy/white, black/gold, grey | white, \
    charcoal heather, light grey, dark denim, off white, multicolor, leopard print, c-khaki, \
    royal blue/red, olive camo, ocean, clear";
/// Sizes of clothes in letters.
const LETTERS: &str = "x-small, small, medium, large, x-large, xx-large, 3x-large";
/// Sizes of bottles.
const BOTTLES: &str = "1 fl oz (pack of 1), 2 fl oz (pack of 2), 3.4 ounce, 8 ounce (pack of 1), 16 fl oz / 473 ml, \
    travel size";
/// Numbers of things in a parcel of food.
const PACKS: &str = "1 count (pack of 1), 6 count, 12 count (pack of 2), 1 pound (pack of 1), 8 ounce (pack of 3), \
    variety pack of 24, 2.5 lb/bag";
