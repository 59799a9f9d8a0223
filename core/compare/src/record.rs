//! A run as the comparison reads it: from a run directory, or from the line that stands for it in a record file.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::CompareError;
use crate::files::{expand, recipe, rows, run_of, text};

/// Facts of `run.json` that a record keeps.
const FACTS: [&str; 9] =
    ["nestor", "commit", "torch", "state", "seconds", "parameters", "estimator", "environment", "start_weights"];
/// Metrics that a record keeps: these, and those that begin with one of `KEPT_SECTIONS`.
const KEPT: [&str; 13] = [
    "episode/success",
    "episode/length",
    "episode/total",
    "episode/valid_action_ratio",
    "episode/repeated_ratio",
    "response/length",
    "loss/kl",
    "tokens/total",
    "policy/entropy",
    "advantage/zero_ratio",
    "time/advantage_s",
    "time/iteration_s",
    "memory/peak_rss_bytes",
];
const KEPT_SECTIONS: [&str; 3] = ["eval/", "anchor/", "estimator/"];
/// Significant digits of the kept metrics.
const DIGITS: usize = 6;

/// All that the comparison reads of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its directory: from the working directory if it is in there, else the last two parts.
    pub name: String,
    /// The resolved recipe.
    pub recipe: Value,
    /// Facts of `run.json`.
    pub facts: Map<String, Value>,
    pub panel: Panel,
    /// Evaluations by iteration; iteration 0 is before training.
    pub outcomes: BTreeMap<u64, Won>,
    pub metrics: Metrics,
}

/// The tasks of a run's evaluations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// Such as ENVIRONMENT/SPLIT/NUMBER of tasks.
    pub name: String,
    /// Hash of the tasks.
    pub sha256: String,
    /// Episodes per task.
    pub samples: u32,
    /// Sampling temperature of the evaluations.
    pub temperature: f64,
    /// Number of tasks.
    pub tasks: usize,
    /// Places of the tasks of each kind; a task without a kind is in none.
    pub types: BTreeMap<String, Vec<usize>>,
}

/// Episodes won of each task of the panel. As text: one digit for each task, or numbers that each end in a comma.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Won(pub Vec<u32>);

impl Serialize for Won {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let end = if self.0.iter().all(|&won| won < 10) { "" } else { "," };
        let text: String = self.0.iter().map(|won| format!("{won}{end}")).collect();
        to.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Won {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let won: Option<Vec<u32>> = match text.strip_suffix(',') {
            Some(numbers) => numbers.split(',').map(|number| number.parse().ok()).collect(),
            None => text.chars().map(|digit| digit.to_digit(10)).collect(),
        };
        won.map(Self).ok_or_else(|| serde::de::Error::custom("outcomes are neither digits nor numbers with commas"))
    }
}

/// Metrics by column, rounded to six significant digits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub iterations: Vec<u64>,
    /// The value of each iteration; null where a row has none.
    pub columns: BTreeMap<String, Vec<Option<f64>>>,
}

impl Metrics {
    fn of(rows: &BTreeMap<u64, Map<String, Value>>) -> Self {
        let is_kept = |name: &str| KEPT.contains(&name) || KEPT_SECTIONS.iter().any(|start| name.starts_with(start));
        let mut columns: BTreeMap<String, Vec<Option<f64>>> = BTreeMap::new();
        for (place, row) in rows.values().enumerate() {
            for (name, value) in row.iter().filter(|(name, _)| is_kept(name)) {
                let column = columns.entry(name.clone()).or_insert_with(|| vec![None; rows.len()]);
                column[place] = value.as_f64().map(rounded);
            }
        }
        Self { iterations: rows.keys().copied().collect(), columns }
    }

    /// The values of a metric, in the order of iterations.
    pub fn values(&self, name: &str) -> impl Iterator<Item = f64> {
        self.columns.get(name).into_iter().flatten().flatten().copied()
    }
}

fn rounded(value: f64) -> f64 {
    format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value)
}

impl Run {
    /// Reads a run directory, or that of a checkpoint.
    pub fn read(path: &Path) -> Result<Self, CompareError> {
        let dir = run_of(path)?;
        let run = name(&dir);
        let facts: Option<Map<String, Value>> =
            text(&dir.join("run.json"))?.and_then(|text| serde_json::from_str(&text).ok());
        let mut facts = facts.ok_or_else(|| CompareError::Older { run: run.clone(), lacks: "run.json" })?;
        // A version that writes this fact also writes panels and outcomes.
        let is_older = !facts.contains_key("start_weights");
        let lack = |lacks| match is_older {
            true => CompareError::Older { run: run.clone(), lacks },
            false => CompareError::NotEvaluated { run: run.clone(), lacks },
        };
        let outcomes = dir.join("outcomes.jsonl");
        if !outcomes.is_file() {
            return Err(lack("outcomes.jsonl"));
        }
        let panel = text(&dir.join("panel.json"))?.ok_or_else(|| lack("panel.json"))?;
        if is_older {
            return Err(CompareError::Older { run, lacks: "start_weights in run.json" });
        }
        let panel = Panel::parse(&panel).map_err(|error| damaged(&run, format!("panel.json: {error}")))?;
        let rows_of_outcomes = rows(&outcomes)?;
        if rows_of_outcomes.is_empty() {
            return Err(lack("evaluation in outcomes.jsonl"));
        }
        let outcomes = rows_of_outcomes.iter().map(|(&iteration, row)| {
            let won = panel.won(row).map_err(|reason| damaged(&run, format!("outcomes.jsonl: {reason}")))?;
            Ok::<_, CompareError>((iteration, won))
        });
        let outcomes = outcomes.collect::<Result<_, _>>()?;
        facts.retain(|key, _| FACTS.contains(&key.as_str()));
        let metrics = Metrics::of(&rows(&dir.join("metrics.jsonl"))?);
        Ok(Self { name: run, recipe: recipe(&dir)?.1, facts, panel, outcomes, metrics })
    }

    /// The seed of its recipe.
    pub fn seed(&self) -> u64 {
        self.recipe.get("seed").and_then(Value::as_u64).unwrap_or(0)
    }

    /// SHA-256 of the weights that it starts from; none if they could not be read.
    pub fn start_weights(&self) -> Option<&str> {
        self.facts.get("start_weights").and_then(Value::as_str)
    }

    /// The line of a record file.
    pub fn record(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Checks that the outcomes fit the panel, which a record file could contradict.
    fn check(&self) -> Result<(), String> {
        let places = self.panel.types.values().flatten().all(|&place| place < self.panel.tasks);
        let outcomes = self.outcomes.values().all(|won| self.panel.fits(&won.0));
        let columns = self.metrics.columns.values().all(|column| column.len() == self.metrics.iterations.len());
        match places && outcomes && columns && !self.outcomes.is_empty() {
            true => Ok(()),
            false => Err("its outcomes, panel and metrics do not fit together".into()),
        }
    }
}

fn damaged(run: &str, reason: String) -> CompareError {
    CompareError::Damaged { run: run.to_owned(), reason }
}

impl Panel {
    /// Parses `panel.json`.
    fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct File {
            name: String,
            sha256: String,
            samples: u32,
            temperature: f64,
            tasks: Vec<Task>,
        }
        #[derive(Deserialize)]
        struct Task {
            #[serde(rename = "type", default)]
            kind: Option<String>,
        }
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.tasks.is_empty() || file.samples == 0 {
            return Err("it has no task, or no sample".into());
        }
        let mut types: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let tasks = file.tasks.len();
        for (place, task) in file.tasks.into_iter().enumerate() {
            if let Some(kind) = task.kind {
                types.entry(kind).or_default().push(place);
            }
        }
        let File { name, sha256, samples, temperature, .. } = file;
        Ok(Self { name, sha256, samples, temperature, tasks, types })
    }

    /// The outcomes of one evaluation.
    fn won(&self, row: &Map<String, Value>) -> Result<Won, String> {
        if row.get("panel").and_then(Value::as_str) != Some(&self.sha256) {
            return Err("an evaluation played another panel than panel.json names".into());
        }
        let won: Option<Vec<u32>> = row.get("won").and_then(|won| serde_json::from_value(won.clone()).ok());
        won.filter(|won| self.fits(won)).map(Won).ok_or_else(|| {
            format!("an evaluation does not have at most {} won samples of each of {} tasks", self.samples, self.tasks)
        })
    }

    fn fits(&self, won: &[u32]) -> bool {
        won.len() == self.tasks && won.iter().all(|&won| won <= self.samples)
    }
}

/// Reads runs: each path is a run directory, a checkpoint of one, a folder of runs, or a record file with any number of
/// runs.
pub fn runs(paths: &[PathBuf]) -> Result<Vec<Run>, CompareError> {
    let mut found = Vec::new();
    for path in expand(paths) {
        match path.is_file() {
            true => found.extend(records(&path)?),
            false => found.push(Run::read(&path)?),
        }
    }
    if found.is_empty() { Err(CompareError::NoRuns) } else { Ok(found) }
}

fn records(path: &Path) -> Result<Vec<Run>, CompareError> {
    let text = text(path)?.unwrap_or_default();
    let parsed = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).map(|(line, record)| {
        let run: Result<Run, String> = serde_json::from_str(record).map_err(|error| error.to_string());
        let checked = run.and_then(|run| run.check().map(|()| run));
        checked.map_err(|reason| CompareError::Record { path: path.to_owned(), line, reason })
    });
    parsed.collect()
}

/// The name of a run directory.
fn name(dir: &Path) -> String {
    let real = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let here = env::current_dir().and_then(|here| here.canonicalize());
    let parts: Vec<_> = match here.ok().and_then(|here| real.strip_prefix(here).ok()).filter(|p| p.iter().count() > 0) {
        Some(inside) => inside.iter().collect(),
        None => {
            let parts: Vec<_> = real.iter().collect();
            parts[parts.len().saturating_sub(2)..].to_vec()
        }
    };
    parts.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_text_of_either_form() {
        for (won, text) in [(vec![0, 2, 1], "\"021\""), (vec![12], "\"12,\""), (vec![3, 10], "\"3,10,\"")] {
            assert_eq!(serde_json::to_string(&Won(won.clone())).unwrap(), text);
            assert_eq!(serde_json::from_str::<Won>(text).unwrap(), Won(won));
        }
    }
}
