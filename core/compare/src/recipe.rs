//! Recipes as flat lists of keys, their differences, and the runs whose recipes are alike.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Values by dotted key; a list is one value.
pub type Flat = BTreeMap<String, String>;

/// Flattens a recipe.
pub fn flat(recipe: &Value) -> Flat {
    let mut keys = Flat::new();
    flatten("", recipe, &mut keys);
    keys
}

fn flatten(key: &str, value: &Value, keys: &mut Flat) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, value, keys);
            }
        }
        Value::Null if key.is_empty() => {}
        Value::String(text) => {
            keys.insert(key.to_owned(), text.clone());
        }
        other => {
            keys.insert(key.to_owned(), other.to_string());
        }
    }
}

/// Lists the keys whose values differ between recipes, with the value of each.
pub fn differences(recipes: &[Flat]) -> Vec<(String, Vec<Option<String>>)> {
    let keys: BTreeSet<&String> = recipes.iter().flat_map(BTreeMap::keys).collect();
    let row = |key: &String| -> Vec<Option<String>> { recipes.iter().map(|keys| keys.get(key).cloned()).collect() };
    keys.into_iter()
        .map(|key| (key.clone(), row(key)))
        .filter(|(_, values)| values.iter().any(|value| *value != values[0]))
        .collect()
}

/// Keys of a recipe that change no number of a run, or are the seed.
pub fn is_neutral(key: &str) -> bool {
    key == "seed" || key.starts_with("wandb") || key.starts_with("tensorboard")
}

/// Groups recipes that are equal in all but neutral keys, in the order of their first. Each group has its keys and the
/// places of its recipes. An empty recipe is alone.
pub fn alike(recipes: &[Flat], is_neutral: impl Fn(&str) -> bool) -> Vec<(Flat, Vec<usize>)> {
    let mut groups: Vec<(Flat, Vec<usize>)> = Vec::new();
    for (place, recipe) in recipes.iter().enumerate() {
        let own: Flat =
            recipe.iter().filter(|(key, _)| !is_neutral(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        match groups.iter_mut().find(|(known, _)| *known == own && !own.is_empty()) {
            Some((_, places)) => places.push(place),
            None => groups.push((own, vec![place])),
        }
    }
    groups
}
