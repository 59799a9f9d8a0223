//! Porter's first stemmer, as Lucene's `PorterStemFilter` runs it.
//!
//! Porter 1980, "An algorithm for suffix stripping", with the two departures of his own program: `bli` (not `abli`) becomes
//! `ble`, and `logi` becomes `log`. A letter is one UTF-16 unit in Lucene, so words are slices of `u8` (ASCII) or `u16`.

/// One rule: a suffix and its replacement.
type Rule = (&'static str, &'static str);

/// The first suffix that a word ends with decides, so longer ones precede those that they end with.
const DOUBLE: [Rule; 21] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
];

const SINGLE: [Rule; 7] =
    [("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")];

/// Suffixes that a long stem loses; `ion` needs an s or a t before it.
const LAST: [&str; 19] = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
];

/// Cuts `word`, which is in lower case, to its stem. Words of one or two letters stay as they are.
pub fn stem<T: Copy + PartialEq + From<u8>>(word: &mut Vec<T>) {
    if word.len() < 3 {
        return;
    }
    plural(word);
    past(word);
    if let Some(stem) = without(word, "y")
        && has_vowel(&word[..stem])
    {
        replace(word, stem, "i");
    }
    shorten(word, &DOUBLE);
    shorten(word, &SINGLE);
    last(word);
    silent_e(word);
}

/// Plurals: `sses` to `ss`, `ies` to `i`, no `s` after another letter.
fn plural<T: Copy + PartialEq + From<u8>>(word: &mut Vec<T>) {
    if let Some(stem) = without(word, "sses") {
        replace(word, stem, "ss");
    } else if let Some(stem) = without(word, "ies") {
        replace(word, stem, "i");
    } else if without(word, "ss").is_none()
        && let Some(stem) = without(word, "s")
    {
        word.truncate(stem);
    }
}

/// `eed`, `ed` and `ing`, then the repair of the stem that they leave.
fn past<T: Copy + PartialEq + From<u8>>(word: &mut Vec<T>) {
    if let Some(stem) = without(word, "eed") {
        if measure(&word[..stem]) > 0 {
            word.pop();
        }
        return;
    }
    let Some(stem) = without(word, "ed").or_else(|| without(word, "ing")).filter(|&stem| has_vowel(&word[..stem]))
    else {
        return;
    };
    word.truncate(stem);
    if ["at", "bl", "iz"].iter().any(|end| without(word, end).is_some()) {
        word.push(T::from(b'e'));
    } else if double_consonant(word) {
        if !ends_in(word, b"lsz") {
            word.pop();
        }
    } else if measure(word) == 1 && short(word) {
        word.push(T::from(b'e'));
    }
}

/// Applies the first rule whose suffix the word has, if a syllable precedes the suffix.
fn shorten<T: Copy + PartialEq + From<u8>>(word: &mut Vec<T>, rules: &[Rule]) {
    let found = rules.iter().find_map(|(suffix, new)| without(word, suffix).map(|stem| (stem, new)));
    if let Some((stem, new)) = found
        && measure(&word[..stem]) > 0
    {
        replace(word, stem, new);
    }
}

fn last<T: Copy + PartialEq + From<u8>>(word: &mut Vec<T>) {
    let stem = LAST
        .iter()
        .find_map(|suffix| without(word, suffix).filter(|&stem| *suffix != "ion" || ends_in(&word[..stem], b"st")));
    if let Some(stem) = stem.filter(|&stem| measure(&word[..stem]) > 1) {
        word.truncate(stem);
    }
}

/// Removes a silent `e`, and one `l` of two.
fn silent_e<T: Copy + PartialEq + From<u8>>(word: &mut Vec<T>) {
    let measure = measure(word);
    if let Some(stem) = without(word, "e")
        && (measure > 1 || measure == 1 && !short(&word[..stem]))
    {
        word.truncate(stem);
    }
    if measure > 1 && ends_in(word, b"l") && double_consonant(word) {
        word.pop();
    }
}

/// Returns the length of what precedes `suffix`, or none if the word does not end with it.
fn without<T: Copy + PartialEq + From<u8>>(word: &[T], suffix: &str) -> Option<usize> {
    let stem = word.len().checked_sub(suffix.len())?;
    let equal = word[stem..].iter().zip(suffix.bytes()).all(|(&letter, byte)| letter == T::from(byte));
    equal.then_some(stem)
}

fn replace<T: From<u8>>(word: &mut Vec<T>, stem: usize, suffix: &str) {
    word.truncate(stem);
    word.extend(suffix.bytes().map(T::from));
}

fn ends_in<T: Copy + PartialEq + From<u8>>(word: &[T], letters: &[u8]) -> bool {
    word.last().is_some_and(|&last| letters.iter().any(|&letter| last == T::from(letter)))
}

/// Says for each letter whether it is a consonant: no a, e, i, o, u, and no y after a consonant.
fn consonants<T: Copy + PartialEq + From<u8>>(word: &[T]) -> impl Iterator<Item = bool> {
    let mut previous = false;
    word.iter().map(move |&letter| {
        previous = if letter == T::from(b'y') { !previous } else { !b"aeiou".iter().any(|&v| letter == T::from(v)) };
        previous
    })
}

/// Counts the changes from a vowel to a consonant.
fn measure<T: Copy + PartialEq + From<u8>>(word: &[T]) -> usize {
    let mut vowel = false;
    let mut changes = 0;
    for consonant in consonants(word) {
        changes += usize::from(vowel && consonant);
        vowel = !consonant;
    }
    changes
}

fn has_vowel<T: Copy + PartialEq + From<u8>>(word: &[T]) -> bool {
    consonants(word).any(|consonant| !consonant)
}

fn double_consonant<T: Copy + PartialEq + From<u8>>(word: &[T]) -> bool {
    matches!(word, [.., a, b] if a == b) && consonants(word).last() == Some(true)
}

/// True for consonant, vowel, consonant at the end, the last not being w, x or y: such a word needs its `e` (hop, hope).
fn short<T: Copy + PartialEq + From<u8>>(word: &[T]) -> bool {
    let Some(start) = word.len().checked_sub(3) else { return false };
    consonants(word).skip(start).eq([true, false, true]) && !ends_in(word, b"wxy")
}
