//! The nouns of a title, by which the type of a product is compared.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// Words that are no nouns: articles, conjunctions, prepositions, pronouns and auxiliaries, what an apostrophe leaves
/// (`men's`), and the one adjective that titles of every kind of product share.
const NO_NOUNS: [&str; 49] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "can", "for", "from", "has", "have", "in", "into", "is",
    "it", "its", "new", "no", "nor", "not", "of", "on", "onto", "or", "our", "per", "s", "so", "t", "than", "that",
    "the", "their", "these", "this", "those", "to", "via", "was", "we", "which", "will", "with", "without", "you",
    "your",
];

/// Nouns in lower case, in the order of the title, with repetitions.
///
/// The original engine asks a tagger of a language model (spaCy's `en_core_web_sm`). Products that have its nouns in their file
/// pass them as `given`. For others this rule holds: every run of letters is a noun, except articles, prepositions and the like
/// (`NO_NOUNS`). Digits and marks part runs, so `2-Pack` has the noun `pack`.
pub fn nouns(given: Option<&[&str]>, title: &str) -> Vec<String> {
    if let Some(given) = given {
        return given.iter().map(|noun| noun.to_string()).collect();
    }
    title
        .to_lowercase()
        .split(|c: char| c.general_category_group() != GeneralCategoryGroup::Letter)
        .filter(|word| !word.is_empty() && !NO_NOUNS.contains(word))
        .map(str::to_string)
        .collect()
}
