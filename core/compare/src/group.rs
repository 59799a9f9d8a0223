//! Groups of runs: the replicates of one recipe, or of one folder.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::CompareError;
use crate::recipe::{Flat, MODEL, differences, flat, is_free, replicates};
use crate::record::Run;

/// Replicates, by ascending seed.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    pub name: String,
    pub runs: Vec<&'a Run>,
}

/// Groups runs by recipe, or by the folder that holds them, in the order of their first runs.
pub fn groups(runs: &[Run], by_folder: bool) -> Result<Vec<Group<'_>>, CompareError> {
    let recipes: Vec<Flat> = runs.iter().map(|run| flat(&run.recipe)).collect();
    let places = if by_folder { folders(runs) } else { recipe_groups(runs, &recipes) };
    let mut groups = Vec::new();
    for (name, places) in places {
        let mut own: Vec<&Run> = places.iter().map(|&place| &runs[place]).collect();
        own.sort_by_key(|run| run.seed());
        if let Some(pair) = own.windows(2).find(|pair| pair[0].seed() == pair[1].seed()) {
            let [first, second] = [0, 1].map(|at| pair[at].name.clone());
            return Err(CompareError::Twice { first, second, seed: pair[0].seed() });
        }
        let own_recipes: Vec<Flat> = places.iter().map(|&place| recipes[place].clone()).collect();
        let keys: Vec<String> = differences(&own_recipes)
            .into_iter()
            .map(|(key, _)| key)
            .filter(|key| !is_free(key) && key != MODEL)
            .collect();
        if !keys.is_empty() {
            return Err(CompareError::Mixed { folder: name, keys });
        }
        groups.push(Group { name, runs: own });
    }
    Ok(groups)
}

/// Groups by the last folder in the names of runs.
fn folders(runs: &[Run]) -> Vec<(String, Vec<usize>)> {
    let folder = |run: &Run| run.name.rsplit('/').nth(1).unwrap_or(".").to_owned();
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        let folder = folder(run);
        match groups.iter_mut().find(|(name, _)| *name == folder) {
            Some((_, places)) => places.push(place),
            None => groups.push((folder, vec![place])),
        }
    }
    groups
}

/// Groups by recipe. A group's name is its estimator; of several groups of one estimator, all but the first add the
/// keys in which they differ from it.
fn recipe_groups(runs: &[Run], recipes: &[Flat]) -> Vec<(String, Vec<usize>)> {
    let groups = replicates(recipes);
    // The recipe may name a plugin by its file.
    let estimator = |run: &Run| {
        let id = run.facts.get("estimator").or(run.recipe.pointer("/estimator/plugin")).and_then(Value::as_str);
        id.unwrap_or("run").to_owned()
    };
    let mut firsts: BTreeMap<String, Flat> = BTreeMap::new();
    let mut named = Vec::new();
    for (keys, places) in groups {
        let mut name = estimator(&runs[places[0]]);
        match firsts.get(&name) {
            Some(first) => {
                for (key, values) in telling(differences(&[first.clone(), keys.clone()])) {
                    let value = values[1].as_deref().unwrap_or("unset");
                    name += &format!(" {}={value}", key.rsplit('.').next().unwrap_or(&key));
                }
            }
            None => {
                firsts.insert(name.clone(), keys.clone());
            }
        }
        // Two keys may end alike.
        let count = named.iter().filter(|(known, _): &&(String, _)| *known == name).count();
        named.push((if count > 0 { format!("{name} #{}", count + 1) } else { name }, places));
    }
    named
}

/// The differences that name a group: the folder of its weights only where nothing else differs.
fn telling<T>(mut differences: Vec<(String, T)>) -> Vec<(String, T)> {
    if differences.len() > 1 {
        differences.retain(|(key, _)| key != MODEL);
    }
    differences
}

/// The keys besides the estimator's own whose values differ between groups, each as a sentence.
pub fn other_differences(groups: &[Group]) -> Vec<String> {
    let recipes: Vec<Flat> = groups.iter().map(|group| flat(&group.runs[0].recipe)).collect();
    let is_other = |key: &str| !is_free(key) && key != MODEL && !key.starts_with("estimator.");
    let differing = differences(&recipes).into_iter().filter(|(key, _)| is_other(key));
    let sentence = |(key, values): (String, Vec<Option<String>>)| {
        let mut by_value: Vec<(String, Vec<&str>)> = Vec::new();
        for (group, value) in groups.iter().zip(values) {
            let value = value.unwrap_or_else(|| "unset".into());
            match by_value.iter_mut().find(|(known, _)| *known == value) {
                Some((_, names)) => names.push(&group.name),
                None => by_value.push((value, vec![&group.name])),
            }
        }
        let parts: Vec<String> =
            by_value.iter().map(|(value, names)| format!("{value} in {}", names.join(", "))).collect();
        format!("{key}: {}", parts.join("; "))
    };
    differing.map(sentence).collect()
}
