//! Comparability: what all runs must share for a difference to be one of the groups.

use std::collections::BTreeSet;

use crate::group::Group;
use crate::recipe::{Flat, flat};
use crate::record::Run;

/// Keys, and sections of keys, of a recipe that are not part of the method: the environment, the budget, and the start.
const SHARED: [&str; 14] = [
    "env.plugin",
    "env.config",
    "iterations",
    "model.lora",
    "model.new",
    "warm_start",
    "rollout.tasks",
    "rollout.group_size",
    "rollout.max_steps",
    "rollout.max_prompt_tokens",
    "rollout.max_response_tokens",
    "rollout.split",
    "update.epochs",
    "update.mini_batch",
];

/// Lists the differences that make a comparison unfair, one sentence each. Empty if the groups are comparable.
pub fn obstacles(groups: &[Group]) -> Vec<String> {
    let runs: Vec<&Run> = groups.iter().flat_map(|group| group.runs.iter().copied()).collect();
    let mut found = Vec::new();
    let mut compare = |what: &str, value: &dyn Fn(&Run) -> String| {
        let values: Vec<String> = runs.iter().map(|run| value(run)).collect();
        found.extend(differs(what, &runs, &values));
    };
    compare("evaluation panel", &|run| {
        let hash: String = run.panel.sha256.chars().take(8).collect();
        format!("{} (hash {hash})", run.panel.name)
    });
    compare("samples per evaluation task", &|run| run.panel.samples.to_string());
    compare("evaluation temperature", &|run| run.panel.temperature.to_string());
    let recipes: Vec<Flat> = runs.iter().map(|run| flat(&run.recipe)).collect();
    // A list of environments is one value.
    let is_shared = |key: &&String| *key == "env" || SHARED.iter().any(|shared| is_within(key, shared));
    let keys: BTreeSet<&String> = recipes.iter().flat_map(|recipe| recipe.keys()).filter(is_shared).collect();
    for key in keys {
        let values: Vec<String> =
            recipes.iter().map(|recipe| recipe.get(key).cloned().unwrap_or_else(|| "unset".into())).collect();
        found.extend(differs(key, &runs, &values));
    }
    let mut compare = |what: &str, value: &dyn Fn(&Run) -> String| {
        let values: Vec<String> = runs.iter().map(|run| value(run)).collect();
        found.extend(differs(what, &runs, &values));
    };
    compare("iterations finished", &|run| run.metrics.iterations.last().map_or("none".into(), u64::to_string));
    compare("iterations evaluated", &|run| shown(&run.outcomes.keys().copied().collect::<Vec<_>>()));
    compare("episodes played", &|run| {
        run.metrics.values("episode/total").last().map_or("unknown".into(), |total| total.to_string())
    });
    found.extend(start_weights(groups));
    found
}

fn is_within(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Says how a value differs between runs, the rarer values first.
fn differs(what: &str, runs: &[&Run], values: &[String]) -> Option<String> {
    let mut by_value: Vec<(&String, Vec<&str>)> = Vec::new();
    for (run, value) in runs.iter().zip(values) {
        match by_value.iter_mut().find(|(known, _)| *known == value) {
            Some((_, names)) => names.push(&run.name),
            None => by_value.push((value, vec![&run.name])),
        }
    }
    if by_value.len() < 2 {
        return None;
    }
    by_value.sort_by_key(|(_, names)| names.len());
    let last = by_value.len() - 1;
    let part = |(place, (value, names)): (usize, &(&String, Vec<&str>))| match place == last && names.len() > 3 {
        true => format!("{value} in the other {} runs", names.len()),
        false => format!("{value} in {}", names.join(", ")),
    };
    let parts: Vec<String> = by_value.iter().enumerate().map(part).collect();
    Some(format!("{what} differs: {}", parts.join("; ")))
}

/// A list of iterations, short.
fn shown(iterations: &[u64]) -> String {
    let text = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match iterations {
        [first, second, .., last] if iterations.len() > 6 => {
            format!("{first}, {second}, …, {last} ({} evaluations)", iterations.len())
        }
        few => text(few),
    }
}

/// Compares the start weights of each group with those of the first: seed by seed where they share seeds, else as sets.
fn start_weights(groups: &[Group]) -> Vec<String> {
    let mut found = Vec::new();
    let unknown: Vec<&str> = groups
        .iter()
        .flat_map(|group| &group.runs)
        .filter(|run| run.start_weights().is_none())
        .map(|run| run.name.as_str())
        .collect();
    if !unknown.is_empty() {
        found.push(format!("start weights are unknown of {}", unknown.join(", ")));
    }
    let short = |run: &Run| run.start_weights().unwrap_or("unknown").chars().take(8).collect::<String>();
    let Some((first, others)) = groups.split_first() else { return found };
    for other in others {
        let pairs: Vec<(&Run, &Run)> = first
            .runs
            .iter()
            .flat_map(|a| other.runs.iter().filter(|b| b.seed() == a.seed()).map(|b| (*a, *b)))
            .collect();
        for (a, b) in pairs.iter().filter(|(a, b)| a.start_weights() != b.start_weights()) {
            found.push(format!(
                "start weights of seed {} differ: {} in {}; {} in {}",
                a.seed(),
                short(a),
                a.name,
                short(b),
                b.name
            ));
        }
        let set = |group: &Group| group.runs.iter().map(|run| short(run)).collect::<BTreeSet<_>>();
        let (own, theirs) = (set(first), set(other));
        if pairs.is_empty() && own != theirs {
            let names = |group: &Group| group.runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>().join(", ");
            let list = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(", ");
            found.push(format!(
                "start weights differ: {} in {}; {} in {}",
                list(own),
                names(first),
                list(theirs),
                names(other)
            ));
        }
    }
    found
}
