//! Likeness of two texts by their sets of words: thefuzz 0.22.1, `fuzz.token_set_ratio`, with rapidfuzz's processing.

use std::collections::BTreeSet;

use rapidfuzz::distance::indel;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// Likeness of two texts from 0 to 100. It is 100 if the words of one text are among those of the other, and 0 if a text
/// has no word.
///
/// Equal to Python's, but for letters that Unicode added after version 13: rapidfuzz takes those for spaces.
pub fn token_set_ratio(a: &str, b: &str) -> u8 {
    let (a, b) = (processed(a), processed(b));
    let (a, b) = (words(&a), words(&b));
    if a.is_empty() || b.is_empty() {
        return 0;
    }
    let shared: Vec<&str> = a.intersection(&b).copied().collect();
    let only_a = a.difference(&b).copied().collect::<Vec<_>>().join(" ");
    let only_b = b.difference(&a).copied().collect::<Vec<_>>().join(" ");
    if !shared.is_empty() && (only_a.is_empty() || only_b.is_empty()) {
        return 100;
    }

    // Three texts: the shared words alone, with the rest of `a`, and with the rest of `b`. The best of the three pairs counts.
    let distance = indel::distance(only_a.chars(), only_b.chars());
    let (rest_a, rest_b) = (only_a.chars().count(), only_b.chars().count());
    let best = if shared.is_empty() {
        ratio(distance, rest_a + rest_b)
    } else {
        let base = shared.join(" ").chars().count();
        // A space parts the shared words from the rest.
        let (rest_a, rest_b) = (rest_a + 1, rest_b + 1);
        ratio(distance, 2 * base + rest_a + rest_b)
            .max(ratio(rest_a, 2 * base + rest_a))
            .max(ratio(rest_b, 2 * base + rest_b))
    };
    // Python's `round` takes the even number for a half.
    best.round_ties_even() as u8
}

/// Percentage of characters that match, of two texts of `length` characters together that insertions and deletions part.
fn ratio(distance: usize, length: usize) -> f64 {
    100.0 - 100.0 * distance as f64 / length as f64
}

/// Letters and digits in lower case, a space for everything else. The upper half of Latin-1 vanishes without a space: thefuzz
/// takes it, and no further character, for what is not ASCII.
fn processed(text: &str) -> String {
    text.chars()
        .filter(|c| !('\u{80}'..='\u{ff}').contains(c))
        .map(|c| match c.general_category_group() {
            // rapidfuzz maps one character to one. Only İ has two in lower case: i and a dot.
            GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number => c.to_lowercase().next().unwrap_or(c),
            _ => ' ',
        })
        .collect()
}

fn words(processed: &str) -> BTreeSet<&str> {
    processed.split(' ').filter(|word| !word.is_empty()).collect()
}
