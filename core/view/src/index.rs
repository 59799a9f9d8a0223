//! The page's index, which is read when the page opens: metrics and recipes of all runs, and the list of episodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};

use crate::blocks::{Rollouts, encode};
use crate::read::RunDir;
use crate::turns::number;
use crate::{MetricInfo, Options};

/// Everything but the episodes.
#[derive(Serialize)]
pub(crate) struct About {
    runs: Vec<AboutRun>,
    metrics: BTreeMap<String, Value>,
    /// Keys of the recipes whose values differ between the runs, with the value of each run.
    differences: Vec<(String, Vec<Option<String>>)>,
}

#[derive(Serialize)]
struct AboutRun {
    name: String,
    recipe: String,
    iterations: Vec<u64>,
    series: BTreeMap<String, Series>,
}

/// One metric of one run.
#[derive(Default, Serialize)]
struct Series {
    /// Indices into the run's iterations.
    at: Vec<usize>,
    /// `null` if the value was not finite.
    values: Vec<Value>,
}

impl About {
    pub fn of(runs: &[RunDir], known: &[MetricInfo]) -> Self {
        let names = names(runs);
        let about: Vec<AboutRun> = runs.iter().zip(names).map(|(run, name)| AboutRun::of(run, name)).collect();
        let emitted: BTreeSet<&String> = about.iter().flat_map(|run| run.series.keys()).collect();
        let metrics = emitted.into_iter().filter_map(|name| {
            let info = find(known, name)?;
            let about = json!({"unit": info.unit, "meaning": info.meaning, "formula": info.formula});
            Some((name.clone(), about))
        });
        Self { metrics: metrics.collect(), differences: differences(runs), runs: about }
    }

    /// Estimates its bytes in the page.
    pub fn encoded_len(&self) -> usize {
        encode(self).len() + 1000
    }

    /// Returns the encoded index.
    pub fn with_rollouts(&self, rollouts: &Rollouts, options: &Options) -> String {
        let (from, to) = options.iterations.clone().map(|range| range.into_inner()).unzip();
        encode(&json!({
            "about": self,
            "rollouts": rollouts.files,
            "episodes": rollouts.episodes,
            "kept": rollouts.kept,
            "damaged": rollouts.damaged,
            "max_mib": options.max_bytes >> 20,
            "from": from,
            "to": to,
        }))
    }
}

impl AboutRun {
    fn of(run: &RunDir, name: String) -> Self {
        let mut series: BTreeMap<String, Series> = BTreeMap::new();
        for (place, row) in run.rows.values().enumerate() {
            for (metric, value) in row.iter().filter(|(_, value)| value.is_number() || value.is_null()) {
                let series = series.entry(metric.clone()).or_default();
                series.at.push(place);
                series.values.push(number(value.as_f64(), 7));
            }
        }
        Self { name, recipe: run.recipe.clone(), iterations: run.rows.keys().copied().collect(), series }
    }
}

/// Returns the last part of each run's path, preceded by the part before it if two would be equal.
fn names(runs: &[RunDir]) -> Vec<String> {
    let parts = |run: &RunDir| {
        let dir = run.dir.canonicalize().unwrap_or_else(|_| run.dir.clone());
        dir.iter().map(|part| part.to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let all: Vec<Vec<String>> = runs.iter().map(parts).collect();
    let tail = |parts: &[String], count: usize| parts[parts.len().saturating_sub(count)..].join("/");
    let name = |parts: &Vec<String>| {
        let clash = all.iter().filter(|other| other.last() == parts.last()).count() > 1;
        tail(parts, 1 + usize::from(clash))
    };
    all.iter().map(name).collect()
}

/// Finds the documentation of a metric: the entry of its name, or the first whose `<...>` fits.
fn find<'a>(known: &'a [MetricInfo], name: &str) -> Option<&'a MetricInfo> {
    known.iter().find(|info| info.name == name).or_else(|| known.iter().find(|info| fits(&info.name, name)))
}

/// Returns true if a name matches `pattern`, whose `<...>` match one character or more.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('<') else { return pattern == name };
    let Some((_, after)) = rest.split_once('>') else { return pattern == name };
    let Some(open) = name.strip_prefix(before) else { return false };
    open.char_indices()
        .skip(1)
        .map(|(place, _)| place)
        .chain([open.len()])
        .any(|place| place > 0 && fits(after, &open[place..]))
}

fn differences(runs: &[RunDir]) -> Vec<(String, Vec<Option<String>>)> {
    let flat: Vec<BTreeMap<String, String>> = runs
        .iter()
        .map(|run| {
            let mut keys = BTreeMap::new();
            flatten("", &run.recipe_value, &mut keys);
            keys
        })
        .collect();
    let keys: BTreeSet<&String> = flat.iter().flat_map(BTreeMap::keys).collect();
    let row = |key: &String| -> Vec<Option<String>> { flat.iter().map(|keys| keys.get(key).cloned()).collect() };
    keys.into_iter()
        .map(|key| (key.clone(), row(key)))
        .filter(|(_, values)| values.iter().any(|value| *value != values[0]))
        .collect()
}

/// Flattens a recipe to values by dotted key; a list is one value.
fn flatten(key: &str, value: &Value, keys: &mut BTreeMap<String, String>) {
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

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_match_names() {
        assert!(fits("time/<phase>_s", "time/roll_out_s"));
        assert!(fits("eval/success/<task_type>", "eval/success/heat"));
        assert!(!fits("eval/success/<task_type>", "eval/success/"));
        assert!(!fits("time/<phase>_s", "time/_s"));
        assert!(fits("lr", "lr"));
        assert!(fits("a/<b>/<c>", "a/ü/x"));
    }
}
