//! The page's index, which is read when the page opens: metrics and recipes of all runs, and the list of episodes.

use std::collections::{BTreeMap, BTreeSet};

use nestor_compare::{differences, flat};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::axes::Axes;
use crate::blocks::{FileEntry, encode};
use crate::comparison::Comparison;
use crate::details::Details;
use crate::read::RunDir;
use crate::state::{planned, state};
use crate::table::Table;
use crate::variants::{Variant, variants};
use crate::{MetricInfo, Options};

/// Everything but the episodes.
#[derive(Serialize)]
pub(crate) struct About {
    runs: Vec<AboutRun>,
    variants: Vec<Variant>,
    metrics: BTreeMap<String, Value>,
    /// Keys of the recipes whose values differ between the runs, with the value of each run.
    differences: Vec<(String, Vec<Option<String>>)>,
    /// That of the variants, where there are several.
    comparison: Option<Comparison>,
}

#[derive(Serialize)]
struct AboutRun {
    name: String,
    recipe: String,
    /// `run.json`, completed from the recipe for older runs.
    info: Map<String, Value>,
    state: &'static str,
    /// Iterations that the recipe asks for.
    planned: Option<u64>,
    #[serde(flatten)]
    table: Table,
    axes: Axes,
    /// Rows of the block `d-RUN` by kind.
    details: BTreeMap<&'static str, usize>,
}

impl About {
    pub fn of(runs: &[RunDir], details: &[Details], known: &[MetricInfo]) -> Self {
        let names = names(runs);
        let recipes: Vec<_> = runs.iter().map(|run| flat(&run.recipe_value)).collect();
        let variants = variants(&names, &recipes);
        let each = runs.iter().zip(details).zip(names);
        let about: Vec<AboutRun> = each.map(|((run, details), name)| AboutRun::of(run, details, name)).collect();
        let emitted: BTreeSet<&String> =
            about.iter().flat_map(|run| run.table.metrics()).chain(details.iter().flat_map(Details::metrics)).collect();
        let metrics = emitted.into_iter().filter_map(|name| {
            let info = find(known, name)?;
            let about = json!({"unit": info.unit, "meaning": info.meaning, "formula": info.formula});
            Some((name.clone(), about))
        });
        Self {
            metrics: metrics.collect(),
            comparison: if variants.len() > 1 { Comparison::of(runs) } else { None },
            variants,
            differences: differences(&recipes),
            runs: about,
        }
    }

    /// Estimates its bytes in the page.
    pub fn encoded_len(&self) -> usize {
        encode(self).len() + 1000
    }

    /// Returns the encoded index. `files` are the files of episodes by run.
    pub fn with_files(&self, files: &[Vec<FileEntry>], options: &Options, served: bool) -> String {
        let (from, to) = options.iterations.clone().map(|range| range.into_inner()).unzip();
        encode(&json!({
            "about": self,
            "rollouts": files,
            "served": served,
            "max_mib": options.max_bytes >> 20,
            "from": from,
            "to": to,
        }))
    }
}

impl AboutRun {
    fn of(run: &RunDir, details: &Details, name: String) -> Self {
        let mut info = run.info.clone();
        let version = run.recipe.lines().find_map(|line| line.strip_prefix("# nestor "));
        for (key, value) in [
            ("nestor", version.map(Value::from)),
            ("environment", run.recipe_value.pointer("/env/plugin").cloned()),
            ("estimator", run.recipe_value.pointer("/estimator/plugin").cloned()),
            ("device", run.recipe_value.get("device").cloned()),
            ("dtype", run.recipe_value.get("dtype").cloned()),
        ] {
            if let (false, Some(value)) = (info.contains_key(key), value) {
                info.insert(key.into(), value);
            }
        }
        let rows = run.rows.iter().map(|(&iteration, row)| (iteration, row));
        Self {
            name,
            recipe: run.recipe.clone(),
            info,
            state: state(run),
            planned: planned(run),
            table: Table::of(rows),
            axes: Axes::of(run),
            details: details.counts(),
        }
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
