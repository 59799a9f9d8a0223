//! Recipes as flat lists of keys, their differences, and the runs whose recipes are alike.

use std::collections::{BTreeMap, BTreeSet};

use nestor_recipe::Recipe;
use serde_json::Value;

/// Values by dotted key; a list is one value.
pub type Flat = BTreeMap<String, String>;

/// Flattens a recipe. A key that the run's version of Nestor did not have yet has its default.
pub fn flat(recipe: &Value) -> Flat {
    let mut keys = Flat::new();
    let whole = serde_json::from_value::<Recipe>(recipe.clone()).and_then(|recipe| serde_json::to_value(&recipe));
    flatten("", whole.as_ref().unwrap_or(recipe), &mut keys);
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
/// The folder of the weights is a setting as any other where several seeds share it. Elsewhere each seed may have its own: that
/// of a sweep's warm start, or folders that differ in the seed alone.
pub fn replicates(recipes: &[Flat]) -> Vec<(Flat, Vec<usize>)> {
    let own = |recipe: &Flat| -> Flat {
        recipe.iter().filter(|(key, _)| !is_free(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let mut alike: Vec<(Flat, Vec<usize>)> = Vec::new();
    for (place, recipe) in recipes.iter().enumerate() {
        let mut rest = own(recipe);
        rest.remove(MODEL);
        match alike.iter_mut().find(|(known, _)| *known == rest && !recipe.is_empty()) {
            Some((_, places)) => places.push(place),
            None => alike.push((rest, vec![place])),
        }
    }
    let mut groups: Vec<Vec<usize>> = alike.iter().flat_map(|(_, places)| by_folder(recipes, places)).collect();
    groups.sort_by_key(|places| places[0]);
    groups.into_iter().map(|places| (own(&recipes[places[0]]), places)).collect()
}

/// Splits runs that differ at most in seed and folder of weights.
fn by_folder(recipes: &[Flat], places: &[usize]) -> Vec<Vec<usize>> {
    let seed = |place: usize| recipes[place].get("seed").map_or("", String::as_str);
    let seeds = |places: &[usize]| places.iter().map(|&place| seed(place)).collect::<BTreeSet<_>>().len();
    let split = |places: &[usize], name: &dyn Fn(usize) -> Option<String>| -> Vec<Vec<usize>> {
        let mut split: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
        places.iter().for_each(|&place| split.entry(name(place)).or_default().push(place));
        split.into_values().collect()
    };
    let folder = |place: usize| recipes[place].get(MODEL).cloned();
    let by_name = split(places, &folder);
    let (mut groups, single): (Vec<_>, Vec<_>) = by_name.into_iter().partition(|places| seeds(places) > 1);
    let single = single.concat();
    for own in split(&single, &|place| folder(place).map(|path| without_seed(&path, seed(place)))) {
        match seeds(&own) == own.len() {
            true => groups.push(own),
            false => groups.extend(split(&own, &folder)),
        }
    }
    groups
}

/// A path with `#` for the run's seed as a word of its own (`1`, `s1`, `seed1`), and for the hash of a sweep's warm start.
fn without_seed(path: &str, seed: &str) -> String {
    let path = match path.split_once(WARM_STARTS) {
        // In older sweeps the hash holds the seed.
        Some((before, after)) if !after.contains("/seed-") => {
            format!("{before}{WARM_STARTS}#{}", after.find('/').map_or("", |end| &after[end..]))
        }
        _ => path.to_owned(),
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
        let start = |setting: &str, seed: u64| format!("s/.warm_starts/{setting}/seed-{seed}/model");
        let paths = [start("0ab1", 1), start("0ab1", 2), start("9f", 1), start("9f", 2)];
        let runs: Vec<(u64, &str, &str)> =
            [1, 2, 1, 2].into_iter().zip(&paths).map(|(s, p)| (s, p.as_str(), "1")).collect();
        assert_eq!(grouped(&runs), [[0, 1], [2, 3]], "two settings of the warm start");
        let one = start("0ab1", 1);
        assert_eq!(
            grouped(&[(1, &one, "1"), (2, &one, "1")]),
            [[0, 1]],
            "a seed of the warm start that is a run's too"
        );
        assert_eq!(grouped(&[(1, a, "1"), (2, "", "1")]), [[0], [1]], "one of them from new weights");
    }

    #[test]
    fn a_key_of_a_newer_version_has_its_default_in_older_runs() {
        let recipe = |rollout: &str, lr: &str| -> Value {
            let rollout = format!(
                "{{tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 8, max_response_tokens: 8{rollout}}}"
            );
            let update = format!("{{mini_batch: 1, lr: {lr}}}");
            let text = format!(
                "{{iterations: 4, model: {{path: m}}, env: {{plugin: maze}}, estimator: {{plugin: stars}}, rollout: {rollout}, \
                 update: {update}, eval: {{tasks: 2}}}}"
            );
            serde_yaml::from_str(&text).expect("a recipe")
        };
        let differ = |a: &Value, b: &Value| -> Vec<String> {
            differences(&[flat(a), flat(b)]).into_iter().map(|(key, _)| key).collect()
        };
        assert!(differ(&recipe("", "1"), &recipe(", min_p: 0, top_p: 1", "1")).is_empty());
        assert_eq!(differ(&recipe("", "1"), &recipe(", min_p: 0.1", "2")), ["rollout.min_p", "update.lr"]);
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
