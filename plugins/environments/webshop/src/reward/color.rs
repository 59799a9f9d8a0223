//! Colours: an option that names one counts as this colour alone.

/// WebShop's 102 colours, in the order in which they are looked for.
const COLORS: &str = include_str!("colors.txt");

/// The first colour of the list that `text` contains, even inside a word (`tan` in `titanium`), else the text itself.
pub fn normalize_color(text: &str) -> &str {
    first_color(|color| text.contains(color)).unwrap_or(text)
}

/// The first colour of the list for which `found` is true.
pub fn first_color(found: impl Fn(&str) -> bool) -> Option<&'static str> {
    COLORS.split_whitespace().find(|color| found(color))
}
