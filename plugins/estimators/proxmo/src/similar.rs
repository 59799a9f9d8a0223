//! A step's return against those of similar states.

use nestor_plugin::anchor::Keys;
use nestor_plugin::stats::group_by;
use nestor_plugin::{Rows, tfidf};

use crate::Proxmo;

/// `[B]` Returns AS with the soft baseline. The differences are weighed, so that equal returns give exactly 0.
pub fn against_similar(rows: &Rows<'_>, keys: &Keys<'_>, returns: &[f64], config: &Proxmo) -> Vec<f64> {
    let texts: Vec<_> = (0..rows.len()).map(|row| String::from_utf8_lossy(keys.before(row))).collect();
    let vectors = tfidf::vectors(&texts.iter().map(|text| &**text).collect::<Vec<_>>(), config.max_terms);
    let mut steps = vec![0.0; rows.len()];
    // Without a word nothing is similar, and the reference leaves the step level out.
    if vectors.iter().all(tfidf::Vector::is_empty) {
        return steps;
    }
    for group in group_by(rows.group) {
        for &row in &group {
            let weight = |&other: &usize| (vectors[row].cosine(&vectors[other]) / config.temperature).exp();
            let weights: Vec<f64> = group.iter().map(weight).collect();
            let gains = group.iter().zip(&weights).map(|(&other, weight)| weight * (returns[row] - returns[other]));
            steps[row] = gains.sum::<f64>() / weights.iter().sum::<f64>();
        }
    }
    steps
}
