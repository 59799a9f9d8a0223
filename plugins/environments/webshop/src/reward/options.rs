//! The number of a goal's options that were chosen.

use std::borrow::Cow;
use std::fmt::Write;

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use super::color::{first_color, normalize_color};
use super::similar;
use crate::goal::Options;

/// Number of options of the goal that some chosen value resembles.
pub fn hits(chosen: &[(String, String)], wanted: &Options) -> usize {
    let chosen: Vec<&str> = chosen.iter().map(|(_, value)| normalize_color(value)).collect();
    let hit = |wanted: &str| chosen.iter().any(|value| similar(value, wanted));
    match wanted {
        Options::Values(values) => values.iter().filter(|value| hit(normalize_color(value))).count(),
        Options::Named(pairs) => pairs.iter().filter(|(name, value)| hit(&pair_text(name, value))).count(),
    }
}

/// True if choosing a value fulfils a wish that a person wrote.
pub fn fulfils(chosen: &str, wish: &str) -> bool {
    similar(normalize_color(chosen), normalize_color(wish))
}

/// The text of a named option as the original engine compares it. It holds such an option as a Python tuple. So a colour counts
/// only if it is the whole value (or the whole name); without one, the tuple is printed, and its name takes part.
fn pair_text(name: &str, value: &str) -> Cow<'static, str> {
    match first_color(|color| color == name || color == value) {
        Some(color) => color.into(),
        None => format!("('{}', '{}')", escaped(name), escaped(value)).into(),
    }
}

/// A text as Python prints it inside a tuple. Which quotes it picks does not matter: the comparison makes spaces of them. But it
/// keeps the letters and digits of escapes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\\' => write!(out, "\\\\"),
            _ if is_printable(c) => write!(out, "{c}"),
            ..='\u{ff}' => write!(out, "\\x{:02x}", c as u32),
            ..='\u{ffff}' => write!(out, "\\u{:04x}", c as u32),
            _ => write!(out, "\\U{:08x}", c as u32),
        };
    }
    out
}

/// Python's `str.isprintable` for one character.
fn is_printable(c: char) -> bool {
    c == ' ' || !matches!(c.general_category_group(), GeneralCategoryGroup::Other | GeneralCategoryGroup::Separator)
}
