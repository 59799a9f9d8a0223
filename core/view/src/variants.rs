//! Runs that differ in nothing but the seed: the page draws their mean and spread.

use std::collections::BTreeMap;

use nestor_compare::{Flat, replicates};
use serde::Serialize;

/// Runs of one recipe under several seeds.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Variant {
    pub name: String,
    /// Indices of the runs, ascending.
    pub runs: Vec<usize>,
}

/// Groups runs as `nestor compare` does. A run without a recipe is alone.
pub(crate) fn variants(names: &[String], recipes: &[Flat]) -> Vec<Variant> {
    let groups = replicates(recipes);
    let mut names: Vec<String> = groups.iter().map(|(_, runs)| common_name(names, runs)).collect();
    let unclear = names.iter().any(|name| name.is_empty() || names.iter().filter(|other| *other == name).count() > 1);
    if unclear {
        names = groups.iter().enumerate().map(|(place, (own, _))| contrast(place, own, &groups)).collect();
    }
    groups.into_iter().zip(names).map(|((_, runs), name)| Variant { name, runs }).collect()
}

/// Returns the words that the names of a variant's runs begin with, without a trailing `seed`.
fn common_name(names: &[String], runs: &[usize]) -> String {
    let first = &names[runs[0]];
    if runs.len() == 1 {
        return first.clone();
    }
    let shared = |name: &str| first.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
    let count = runs.iter().map(|&run| shared(&names[run])).min().unwrap_or(0);
    let prefix: String = first.chars().take(count).collect();
    let bare = |text: &str| text.trim_end_matches(['-', '_', '.', '/', ' ']).to_owned();
    let prefix = bare(&prefix);
    let seedless = prefix.strip_suffix("seed").or(prefix.strip_suffix("s").filter(|rest| rest.ends_with(['-', '_'])));
    bare(seedless.unwrap_or(&prefix))
}

/// Names a variant by the values in which the variants differ.
fn contrast(place: usize, own: &Flat, groups: &[(Flat, Vec<usize>)]) -> String {
    let differs = |key: &String| groups.iter().any(|(other, _)| other.get(key) != own.get(key));
    let values: BTreeMap<&String, &String> = own.iter().filter(|(key, _)| differs(key)).collect();
    let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    // The folder of a sweep's warm start tells least.
    let (folder, telling): (Vec<_>, Vec<_>) = values.iter().partition(|(key, _)| key.as_str() == "model.path");
    let words: Vec<String> =
        telling.iter().chain(&folder).take(3).map(|(key, value)| format!("{} {value}", last(key))).collect();
    if words.is_empty() { format!("variant {}", place + 1) } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(seed: u64, estimator: &str) -> Flat {
        [("seed", seed.to_string()), ("estimator.plugin", estimator.into()), ("lr", "0.1".into())]
            .map(|(key, value)| (key.to_owned(), value))
            .into()
    }

    #[test]
    fn runs_that_differ_in_the_seed_form_a_variant_named_after_their_names() {
        let recipes = [recipe(1, "gigpo"), recipe(1, "grpo"), recipe(2, "gigpo"), Flat::new(), Flat::new()];
        let names = ["gigpo-seed1", "b", "gigpo-seed2", "c", "d"].map(String::from);
        let found = variants(&names, &recipes);
        let shown: Vec<(&str, &[usize])> = found.iter().map(|v| (v.name.as_str(), &*v.runs)).collect();
        assert_eq!(shown, [("gigpo", &[0, 2][..]), ("b", &[1]), ("c", &[3]), ("d", &[4])]);
    }

    #[test]
    fn names_that_share_nothing_are_replaced_by_the_values_that_differ() {
        let recipes = [recipe(1, "gigpo"), recipe(2, "gigpo"), recipe(1, "grpo"), recipe(2, "grpo")];
        let names = ["a", "x", "b", "y"].map(String::from);
        let shown: Vec<String> = variants(&names, &recipes).into_iter().map(|v| v.name).collect();
        assert_eq!(shown, ["plugin gigpo", "plugin grpo"]);
    }
}
