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

/// Keys in which replicates may differ: the seed, and keys that change no number of a run.
pub fn is_free(key: &str) -> bool {
    let is_written = ["wandb", "tensorboard", "checkpoint.", "dist."].iter().any(|start| key.starts_with(start));
    key == "seed" || is_written || key == "eval.save_episodes"
}

/// The key of the weights that a run starts from. A comparison compares their hash, so their folder does not count there.
pub const MODEL: &str = "model.path";
/// The folder in which a sweep keeps its warm starts, each in a folder named by a hash.
const WARM_STARTS: &str = ".warm_starts/";

/// Groups the replicates of one recipe, in the order of their first: runs that are equal in all but free keys. Each group has
/// the keys of its first and the places of its recipes. An empty recipe is alone.
///
/// Replicates may also start from folders of weights that differ in their own seed (`warm/seed-1`), or in the hash of a
/// sweep's warm start: each seed then has its own warm start. Where one seed appears twice or two seeds share a folder, the
/// folder is a setting as any other. Other numbers in a path tell models apart, as in `Qwen2.5-0.5B`.
pub fn replicates(recipes: &[Flat]) -> Vec<(Flat, Vec<usize>)> {
    let kept = |recipe: &Flat, is_kept: &dyn Fn(&str) -> bool| -> Flat {
        recipe.iter().filter(|(key, _)| is_kept(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let mut groups: Vec<(Flat, Vec<usize>)> = Vec::new();
    for (place, recipe) in recipes.iter().enumerate() {
        let mut own = kept(recipe, &|key| !is_free(key));
        let seed = recipe.get("seed").cloned().unwrap_or_default();
        own.entry(MODEL.to_owned()).and_modify(|path| *path = without_seed(path, &seed));
        match groups.iter_mut().find(|(known, _)| *known == own && !own.is_empty()) {
            Some((_, places)) => places.push(place),
            None => groups.push((own, vec![place])),
        }
    }
    let split = groups.into_iter().flat_map(|(_, places)| by_folder(recipes, places));
    let mut split: Vec<Vec<usize>> = split.collect();
    split.sort_by_key(|places| places[0]);
    split.into_iter().map(|places| (kept(&recipes[places[0]], &|key| !is_free(key)), places)).collect()
}

/// Splits replicates by the folder of their weights, unless each seed has its own.
fn by_folder(recipes: &[Flat], places: Vec<usize>) -> Vec<Vec<usize>> {
    let distinct = |key: &str| places.iter().map(|&place| recipes[place].get(key)).collect::<BTreeSet<_>>().len();
    let folders = distinct(MODEL);
    if folders == 1 || (folders == places.len() && distinct("seed") == places.len()) {
        return vec![places];
    }
    let mut split: BTreeMap<Option<&String>, Vec<usize>> = BTreeMap::new();
    for place in places {
        split.entry(recipes[place].get(MODEL)).or_default().push(place);
    }
    split.into_values().collect()
}

/// A path with `#` for the run's seed as a word of its own (`1`, `s1`, `seed1`), and for the hash of a sweep's warm start.
fn without_seed(path: &str, seed: &str) -> String {
    let path = match path.split_once(WARM_STARTS) {
        Some((before, after)) => {
            format!("{before}{WARM_STARTS}#{}", after.find('/').map_or("", |end| &after[end..]))
        }
        None => path.to_owned(),
    };
    let is_seed =
        |word: &str| [seed.to_owned(), format!("s{seed}"), format!("seed{seed}")].iter().any(|own| own == word);
    let mut text = String::new();
    // A point is part of a word: `0.5B` is the size of a model.
    for piece in path.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '.') {
        let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        text += if is_seed(word) { "#" } else { word };
        text += &piece[word.len()..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of runs, each of a seed, a folder of weights and a learning rate.
    fn grouped(runs: &[(u64, &str, &str)]) -> Vec<Vec<usize>> {
        let recipe = |(seed, path, lr): &(u64, &str, &str)| -> Flat {
            let keys =
                [("seed", seed.to_string()), ("update.lr", (*lr).into()), ("wandb.name", format!("{seed}{path}"))];
            let path = (!path.is_empty()).then(|| ("model.path", (*path).to_owned()));
            keys.into_iter().chain(path).map(|(key, value)| (key.to_owned(), value)).collect()
        };
        let recipes: Vec<Flat> = runs.iter().map(recipe).collect();
        replicates(&recipes).into_iter().map(|(_, places)| places).collect()
    }

    #[test]
    fn seeds_of_a_sweep_are_replicates_whatever_their_warm_starts() {
        let [a, b, c] = ["s/.warm_starts/0ab1/model", "s/.warm_starts/9f/model", "s/.warm_starts/c/model"];
        assert_eq!(grouped(&[(1, a, "1"), (2, b, "1"), (3, c, "1")]), [[0, 1, 2]]);
        assert_eq!(grouped(&[(1, a, "1"), (2, a, "1")]), [[0, 1]], "one warm start of all seeds");
        assert_eq!(grouped(&[(1, a, "1"), (1, a, "2"), (2, b, "1"), (2, b, "2")]), [[0, 2], [1, 3]]);
        assert_eq!(grouped(&[(1, "", "1"), (2, "", "1"), (1, "", "2")]), [vec![0, 1], vec![2]], "without a folder");
        assert_eq!(grouped(&[(1, "ws/seed-1", "1"), (10, "ws/seed-10", "1")]), [[0, 1]], "own warm starts");
        assert_eq!(grouped(&[(1, "ws/seed1/m", "1"), (2, "ws/seed2/m", "1")]), [[0, 1]], "without a hyphen");
        assert_eq!(grouped(&[(1, "ws/1", "1"), (2, "ws/2", "1"), (3, "ws/3", "1")]), [[0, 1, 2]], "numbers alone");
        assert_eq!(grouped(&[(1, a, "1"), (2, "", "1")]), [[0], [1]], "one of them from new weights");
    }

    #[test]
    fn models_are_no_replicates() {
        assert_eq!(grouped(&[(1, "qwen-0.5B", "1"), (1, "qwen-1.5B", "1")]), [[0], [1]]);
        let two = [(1, "qwen-0.5B", "1"), (2, "qwen-0.5B", "1"), (3, "qwen-1.5B", "1"), (4, "qwen-1.5B", "1")];
        assert_eq!(grouped(&two), [[0, 1], [2, 3]]);
        assert_eq!(grouped(&[(1, "base", "1"), (2, "instruct", "1")]), [[0], [1]]);
        assert_eq!(grouped(&[(1, "Qwen2.5-0.5B", "1"), (2, "Qwen2.5-1.5B", "1")]), [[0], [1]], "a size is no seed");
        assert_eq!(grouped(&[(2, "Qwen2-7B", "1"), (3, "Qwen3-7B", "1")]), [[0], [1]], "nor is a version");
        assert_eq!(
            grouped(&[(1, "sft/checkpoint-100", "1"), (2, "sft/checkpoint-900", "1")]),
            [[0], [1]],
            "nor a step"
        );
        let [a, b] = ["s/.warm_starts/a/model", "t/.warm_starts/b/model"];
        assert_eq!(grouped(&[(1, a, "1"), (1, b, "1")]), [[0], [1]], "warm starts of two sweeps");
        assert_eq!(grouped(&[(1, "", "1"), (1, "", "1")]), [[0, 1]], "one run again");
    }
}
