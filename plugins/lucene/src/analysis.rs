//! Text to terms, as Lucene 8.11's `EnglishAnalyzer` does it: words by the rules of Unicode's annex 29, no possessive `'s`,
//! lower case, no stop words, Porter's stems.

use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};
use unicode_segmentation::UnicodeSegmentation;

use crate::stem::stem;
use crate::unicode::{is_picture, is_unspaced};

/// Lucene cuts longer words, counted in UTF-16 units.
const LONGEST: usize = 255;
/// The Arabic decimal point, which counts as a digit.
const ARABIC_POINT: char = '\u{66b}';
/// Draws a key around the character before it.
const KEYCAP: char = '\u{20e3}';

/// Turns text into terms. It keeps its buffers from one text to the next.
#[derive(Default)]
pub struct Analyzer {
    word: Vec<u8>,
    units: Vec<u16>,
    text: String,
}

impl Analyzer {
    /// Calls `found` with each term of `text`, in order.
    pub fn analyze(&mut self, text: &str, mut found: impl FnMut(&str)) {
        // No word crosses a space, so that a text with few foreign letters stays on the fast path.
        for part in text.split_ascii_whitespace() {
            if part.is_ascii() {
                self.ascii(part, &mut found);
            } else {
                words(part, |word| self.foreign(word, &mut found));
            }
        }
    }

    fn ascii(&mut self, mut part: &str, found: &mut impl FnMut(&str)) {
        while let Some(start) = part.bytes().position(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            let view = &part.as_bytes()[start..part.len().min(start + LONGEST)];
            let length = ascii_word(view);
            let word = &view[..length];
            part = &part[start + length..];
            if word.iter().all(|&byte| byte == b'_') {
                continue;
            }
            let word = match word {
                [stem @ .., b'\'', b's' | b'S'] => stem,
                word => word,
            };
            self.word.clear();
            self.word.extend(word.iter().map(u8::to_ascii_lowercase));
            if is_stop_word(&self.word) {
                continue;
            }
            stem(&mut self.word);
            // The bytes are ASCII, so this never fails.
            if let Ok(term) = std::str::from_utf8(&self.word) {
                found(term);
            }
        }
    }

    /// Emits a word of any script.
    fn foreign(&mut self, word: &str, found: &mut impl FnMut(&str)) {
        let word = word.strip_suffix(['s', 'S']).and_then(|word| word.strip_suffix(['\'', '’', '＇'])).unwrap_or(word);
        self.text.clear();
        // Java's lower case is one character for one: of İ it keeps the i without the dot above.
        self.text.extend(word.chars().filter_map(|c| c.to_lowercase().next()));
        if is_stop_word(self.text.as_bytes()) {
            return;
        }
        self.units.clear();
        self.units.extend(self.text.encode_utf16());
        stem(&mut self.units);
        found(&String::from_utf16_lossy(&self.units));
    }
}

/// Returns the length of the word at the start of `text`, whose first byte is a letter, a digit or an underscore.
///
/// `:`, `.` and `'` join letters; `.`, `,`, `;` and `'` join digits; an underscore joins all.
fn ascii_word(text: &[u8]) -> usize {
    let mut end = 1;
    loop {
        let between = |test: fn(&u8) -> bool| test(&text[end - 1]) && text.get(end + 1).is_some_and(test);
        end += match text.get(end) {
            Some(b'_') => 1,
            Some(byte) if byte.is_ascii_alphanumeric() => 1,
            Some(b':') if between(u8::is_ascii_alphabetic) => 2,
            Some(b',' | b';') if between(u8::is_ascii_digit) => 2,
            Some(b'.' | b'\'') if between(u8::is_ascii_alphabetic) || between(u8::is_ascii_digit) => 2,
            _ => return end,
        };
    }
}

/// Calls `found` with each word of `text`.
fn words(mut text: &str, mut found: impl FnMut(&str)) {
    while let Some(word) = first_word(text) {
        let view = units(&text[word.start..], LONGEST);
        let word = if view.len() < word.len() {
            // Lucene sees no more than this of a long word. What it finds there may be shorter: a joint needs two sides.
            match first_word(view) {
                Some(cut) => word.start + cut.start..word.start + cut.end,
                None => word.start..word.start + view.len(),
            }
        } else {
            word
        };
        found(&text[word.clone()]);
        text = &text[word.end..];
    }
}

/// Finds the first word of `text`.
fn first_word(text: &str) -> Option<std::ops::Range<usize>> {
    let mut segments = text.split_word_bound_indices();
    let (start, first) = segments.find(|(_, segment)| is_word(segment))?;
    let mut end = start + first.len();
    if first.starts_with(is_unspaced) {
        // The annex cuts between these letters, Lucene between a run of them and the rest.
        end += segments
            .map(|(_, segment)| segment)
            .take_while(|s| s.starts_with(is_unspaced))
            .map(str::len)
            .sum::<usize>();
    }
    Some(start..end)
}

fn is_word(segment: &str) -> bool {
    let letter = |c: char| {
        c.is_alphabetic() && c.general_category_group() != GeneralCategoryGroup::Mark
            || c.is_numeric() && c.general_category() == GeneralCategory::DecimalNumber
            || c == ARABIC_POINT
    };
    let flag = |c: &char| ('\u{1f1e6}'..='\u{1f1ff}').contains(c);
    segment.chars().any(letter)
        || segment.starts_with(|c| is_unspaced(c) || is_picture(c))
        || segment.starts_with(['#', '*']) && segment.contains(KEYCAP)
        || segment.chars().filter(flag).count() == 2
}

/// Returns the start of `text`, up to `most` UTF-16 units.
fn units(text: &str, most: usize) -> &str {
    let mut length = 0;
    let end = text.char_indices().find(|(_, c)| {
        length += c.len_utf16();
        length > most
    });
    &text[..end.map_or(text.len(), |(end, _)| end)]
}

/// The 33 words that Lucene leaves out.
fn is_stop_word(word: &[u8]) -> bool {
    matches!(
        word,
        b"a" | b"an"
            | b"and"
            | b"are"
            | b"as"
            | b"at"
            | b"be"
            | b"but"
            | b"by"
            | b"for"
            | b"if"
            | b"in"
            | b"into"
            | b"is"
            | b"it"
            | b"no"
            | b"not"
            | b"of"
            | b"on"
            | b"or"
            | b"such"
            | b"that"
            | b"the"
            | b"their"
            | b"then"
            | b"there"
            | b"these"
            | b"they"
            | b"this"
            | b"to"
            | b"was"
            | b"will"
            | b"with"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts and the terms that Anserini 0.14.3's `DefaultEnglishAnalyzer` makes of them.
    const CASES: [(&str, &str); 11] = [
        ("Men's, women’s and boys＇ running-shoes: the TOYS' box's", "men women boi run shoe toi box"),
        ("is it as no such thing this into", "thing"),
        ("3.5 1,000 9:30 v1.2.3 a.b a:b 5;6 c++ e.g. o'neil's", "3.5 1,000 9 30 v1.2.3 a.b a:b 5;6 c e.g o'neil"),
        ("a_b __init__ ___ 6'2\" AT&T", "a_b __init__ 6'2 t"),
        ("café Ünïted İSTANBUL ΣΊΣΥΦΟΣ ½ cup 5² 1½ m٫", "café ünïted istanbul σίσυφοσ cup 5 1 m٫"),
        (
            "日本語 ひらがな カタカナー 한국어 조선 กำลังไทย ກຳລັງ",
            "日 本 語 ひ ら が な カタカナー 한국어 조선 กำลังไทย ກຳລັງ",
        ),
        ("👍🏽 👨‍👩‍👧 🇩🇪 🇩 1️⃣ #️⃣ ★ ™ →", "👍🏽 👨‍👩‍👧 🇩🇪 1️⃣ #️⃣ ★ ™"),
        // Porter's own examples, a few for each step.
        (
            "caresses ponies ties caress cats feed decreed plastered conflated troubled sized hopping falling failing filing sky",
            "caress poni ti caress cat feed decre plaster conflat troubl size hop fall fail file sky",
        ),
        (
            "relational rational conformabli archaeologi vietnamization hopefulness triplicate formative goodness",
            "relat ration conform archaeolog vietnam hope triplic form good",
        ),
        (
            "allowance replacement adjustment dependent adoption homologous bowdlerize ion",
            "allow replac adjust depend adopt homolog bowdler ion",
        ),
        ("probate rate cease enroll roll ys yyy éé aééed", "probat rate ceas enrol roll ys yyi éé aé"),
    ];

    fn analyzed(text: &str) -> Vec<String> {
        let mut terms = Vec::new();
        Analyzer::default().analyze(text, |term| terms.push(term.to_owned()));
        terms
    }

    #[test]
    fn terms_are_lucene_s() {
        for (text, terms) in CASES {
            assert_eq!(analyzed(text).join(" "), terms, "{text}");
        }
    }

    #[test]
    fn a_long_word_is_cut_where_lucene_cuts_it() {
        let (x, ab) = ("x".repeat(255), "ab".repeat(127));
        assert_eq!(analyzed(&format!("{x}xing {ab}'cd {x}é")), [&x, "xing", &ab, "cd", &x, "é"]);
    }
}
