//! Tf-idf vectors of texts and their cosines, as scikit-learn's `TfidfVectorizer` with its defaults: lower case, words of two
//! or more letters, digits or underscores, raw counts, idf = ln((1 + N) / (1 + df)) + 1, L2 norm.

use std::collections::{BTreeMap, HashMap};

/// The vector of a text: terms in ascending order, each with its weight. Its length is 1, or 0 without a known term.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vector(Vec<(usize, f64)>);

impl Vector {
    /// Returns true if the text has no known term.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the cosine of the angle between two vectors; 0 if one has no term.
    pub fn cosine(&self, other: &Self) -> f64 {
        let (mut left, mut right, mut sum) = (self.0.iter().peekable(), other.0.iter().peekable(), 0.0);
        while let (Some(&&(a, x)), Some(&&(b, y))) = (left.peek(), right.peek()) {
            if a == b {
                sum += x * y;
            }
            if a <= b {
                left.next();
            }
            if b <= a {
                right.next();
            }
        }
        sum
    }
}

/// Returns the vector of each text. Only the `max_terms` terms with the largest counts over all texts count; of equal counts
/// the first in the alphabet.
pub fn vectors(texts: &[&str], max_terms: usize) -> Vec<Vector> {
    // Equal texts share their words.
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut documents: Vec<(BTreeMap<String, f64>, f64)> = Vec::new();
    let place: Vec<usize> = texts
        .iter()
        .map(|&text| {
            let next = documents.len();
            let at = *known.entry(text).or_insert(next);
            if at == next {
                documents.push((counts(text), 0.0));
            }
            documents[at].1 += 1.0;
            at
        })
        .collect();
    let mut terms: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (document, copies) in &documents {
        for (word, count) in document {
            let (total, frequency) = terms.entry(word).or_default();
            *total += count * copies;
            *frequency += copies;
        }
    }
    let mut kept: Vec<(&str, f64, f64)> = terms.into_iter().map(|(word, (total, df))| (word, total, df)).collect();
    kept.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable, so equal counts stay in the order of the alphabet
    kept.truncate(max_terms);
    let idf = |df: f64| ((1.0 + texts.len() as f64) / (1.0 + df)).ln() + 1.0;
    let terms: HashMap<&str, (usize, f64)> =
        kept.iter().enumerate().map(|(number, &(word, _, df))| (word, (number, idf(df)))).collect();
    let vector = |document: &BTreeMap<String, f64>| {
        let weighed = document.iter().filter_map(|(word, count)| {
            let (number, idf) = terms.get(word.as_str())?;
            Some((*number, count * idf))
        });
        let mut weighed: Vec<(usize, f64)> = weighed.collect();
        weighed.sort_unstable_by_key(|(number, _)| *number);
        let length = weighed.iter().map(|(_, weight)| weight * weight).sum::<f64>().sqrt();
        weighed.iter_mut().for_each(|(_, weight)| *weight /= length);
        Vector(weighed)
    };
    let vectors: Vec<Vector> = documents.iter().map(|(document, _)| vector(document)).collect();
    place.into_iter().map(|at| vectors[at].clone()).collect()
}

/// The words of a text and their counts.
fn counts(text: &str) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    let text = text.to_lowercase();
    for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| word.chars().nth(1).is_some()) {
        *counts.entry(word.to_string()).or_default() += 1.0;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: idf is 1 for `red` and ln(3 / 2) + 1 for the others, so the cosine is 1 / (1 + (ln(3 / 2) + 1)^2).
    #[test]
    fn cosines_follow_the_formula() {
        let vectors = vectors(&["a Red: apple", "red pear"], 1024);
        let cosine = 1.0 / (1.0 + (1.5f64.ln() + 1.0).powi(2));
        assert!((vectors[0].cosine(&vectors[1]) - cosine).abs() < 1e-12);
        assert!((vectors[0].cosine(&vectors[0]) - 1.0).abs() < 1e-12);
        assert_eq!(super::vectors(&["", "a"], 1024)[1], Vector::default());
    }

    #[test]
    fn rare_terms_are_left_out() {
        let vectors = vectors(&["aa bb", "aa cc", "aa"], 1);
        assert!(vectors.iter().all(|vector| vector.0 == [(0, 1.0)]), "{vectors:?}");
    }
}
