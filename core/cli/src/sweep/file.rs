//! The file of a sweep.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_recipe::{escape, input_error, load, load_as};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::job::Job;

/// Most runs of one sweep.
const MOST_RUNS: usize = 10_000;

/// The keys of the file.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    /// The recipe of all runs; a relative path starts at this file's folder.
    pub recipe: PathBuf,
    /// The folder of the runs; by default `runs/NAME` of this file. Sweeps with one folder share their warm starts.
    #[serde(default)]
    pub dir: Option<PathBuf>,
    /// The seeds of every variant; by default the recipe's own.
    #[serde(default)]
    pub seeds: Vec<u64>,
    /// Names of variants, each with the recipe's keys that it sets, such as `update.lr: 1.0e-4`. Without variants the recipe
    /// itself is the only one, under its file's name.
    #[serde(default)]
    pub variants: Map<String, Value>,
    /// Keys of the recipe with the values to combine: every variant is run with every combination.
    #[serde(default)]
    pub grid: Map<String, Value>,
    /// Runs side by side.
    #[serde(default = "one")]
    pub parallel: usize,
    /// CPU threads of each run; by default the cores divided by `parallel`.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Seed of the model and its warm start in place of each run's own: runs of all seeds then start from the same weights.
    #[serde(default)]
    pub warm_start_seed: Option<u64>,
}

/// Most runs side by side, and most threads of each: beyond any machine.
const MOST_AT_ONCE: usize = 1 << 10;

fn one() -> usize {
    1
}

/// A sweep to run.
#[derive(Debug, Clone)]
pub struct Sweep {
    pub file: SweepFile,
    /// The recipe's path.
    pub recipe: PathBuf,
    pub dir: PathBuf,
}

impl Sweep {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self> {
        let file: SweepFile = load_as(path, problem)?;
        let recipe = path.parent().unwrap_or(Path::new("")).join(&file.recipe);
        let dir = file.dir.clone().unwrap_or_else(|| Path::new("runs").join(path.file_stem().unwrap_or_default()));
        Ok(Self { file, recipe, dir })
    }

    /// CPU threads of each run.
    pub fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.file.threads.unwrap_or((cores / self.file.parallel).max(1))
    }

    /// All runs: every variant under every combination of the grid and every seed. Seeds are outermost, so that all variants
    /// have as many finished runs at any time.
    pub fn jobs(&self) -> Result<Vec<Job>> {
        let mut variants: Vec<(String, Vec<String>)> = self.file.variants.iter().map(variant).collect();
        if variants.is_empty() {
            variants.push((self.recipe.file_stem().unwrap_or_default().to_string_lossy().into_owned(), Vec::new()));
        }
        for (key, values) in &self.file.grid {
            let values: Vec<&Value> = values.as_array().into_iter().flatten().collect();
            let combine = |(name, sets): &(String, Vec<String>)| {
                let with = |value: &&Value| (name_with(name, key, value), [&sets[..], &[set(key, value)]].concat());
                values.iter().map(with).collect::<Vec<_>>()
            };
            variants = variants.iter().flat_map(combine).collect();
        }
        let seeds = match &self.file.seeds[..] {
            [] => vec![load(&self.recipe, &[])?.seed],
            seeds => seeds.to_vec(),
        };
        if variants.len() * seeds.len() > MOST_RUNS {
            return Err(input_error!("{} runs are more than {MOST_RUNS}", variants.len() * seeds.len()));
        }
        let mut jobs = Vec::new();
        for seed in seeds {
            for (name, sets) in &variants {
                let mut sets = [&sets[..], &[format!("seed={seed}")]].concat();
                let mut recipe = load(&self.recipe, &sets).with_context(|| format!("variant {name}"))?;
                let name = format!("{name}/seed-{seed}");
                // A mirror holds one run.
                if let Some(url) = &mut recipe.checkpoint.mirror {
                    *url = format!("{}/{name}", url.trim_end_matches('/'));
                    sets.push(set("checkpoint.mirror", &Value::from(url.clone())));
                }
                jobs.push(Job { dir: self.dir.join(&name), name, sets, recipe, model: None });
            }
        }
        let mut names = BTreeSet::new();
        match jobs.iter().find(|job| !names.insert(&job.name)) {
            Some(job) => Err(input_error!("two runs have the name {}: give the variants other names", job.name)),
            None => Ok(jobs),
        }
    }
}

/// A variant's name and its `--set` arguments.
fn variant((name, keys): (&String, &Value)) -> (String, Vec<String>) {
    let keys = keys.as_object().into_iter().flatten();
    (name.clone(), keys.map(|(key, value)| set(key, value)).collect())
}

/// JSON is YAML too. The file's variables are replaced already.
fn set(key: &str, value: &Value) -> String {
    format!("{key}={}", escape(&value.to_string()))
}

/// A variant's name with a value of the grid, named by the key's last part.
fn name_with(name: &str, key: &str, value: &Value) -> String {
    let text = value.as_str().map_or(value.to_string(), str::to_string);
    let safe: String = text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    format!("{name}-{}={safe}", key.rsplit('.').next().unwrap_or(key))
}

/// True for characters that are safe in a folder's name.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._=+-".contains(c)
}

/// True for values that a recipe reads as one.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// The first value out of range.
fn problem(file: &SweepFile) -> Option<nestor_recipe::Problem> {
    let wrong = |path: &str, message: &str| Some((path.to_string(), message.to_string()));
    let folder = |name: &&String| name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain);
    if let Some(name) = file.variants.keys().find(folder) {
        return wrong(&format!("variants.{name}"), "names a folder: use letters, digits and ._=+-, with no dot first");
    }
    if let Some((name, _)) = file.variants.iter().find(|(_, keys)| !(keys.is_object() || keys.is_null())) {
        return wrong(&format!("variants.{name}"), "must be a map of recipe keys, such as {update.lr: 1.0e-4}");
    }
    let own = |keys: &Value| keys.as_object().is_some_and(|keys| keys.contains_key("seed"));
    if file.grid.contains_key("seed") || file.variants.values().any(own) {
        return wrong("seeds", "is the place for seeds, not a variant or the grid");
    }
    if let Some((key, _)) = file.grid.iter().find(|(_, values)| values.as_array().is_none_or(Vec::is_empty)) {
        return wrong(&format!("grid.{key}"), "must be a list of values, such as [1.0e-4, 3.0e-4]");
    }
    let twice = |(key, values): (&String, &Value)| {
        let values = values.as_array()?;
        let again = |at: &usize| values[..*at].iter().any(|value| is_same(value, &values[*at]));
        (0..values.len()).find(again).map(|at| (format!("grid.{key}"), format!("names {} twice", values[at])))
    };
    if let Some((key, message)) = file.grid.iter().find_map(twice) {
        return wrong(&key, &message);
    }
    if file.seeds.iter().collect::<BTreeSet<_>>().len() < file.seeds.len() {
        return wrong("seeds", "names a seed twice");
    }
    if file.parallel == 0 || file.threads == Some(0) {
        return wrong(if file.parallel == 0 { "parallel" } else { "threads" }, "must be at least 1");
    }
    for (key, count) in [("parallel", file.parallel), ("threads", file.threads.unwrap_or(1))] {
        if count > MOST_AT_ONCE {
            return wrong(key, &format!("must be at most {MOST_AT_ONCE}, but is {count}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = "
iterations: 4
seed: 9
model: {path: model}
env: {plugin: maze}
estimator: {plugin: stars}
rollout: {tasks: 1, group_size: 2, max_steps: 2, max_prompt_tokens: 8, max_response_tokens: 8}
update: {mini_batch: 1, lr: 1}
eval: {tasks: 2}
";

    fn sweep(text: &str) -> Result<Vec<Job>> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("base.yaml"), RECIPE)?;
        std::fs::write(dir.path().join("sweep.yaml"), text)?;
        Sweep::read(&dir.path().join("sweep.yaml"))?.jobs()
    }

    #[test]
    fn variants_grid_and_seeds_are_combined() -> Result<()> {
        let jobs = sweep(
            "{recipe: base.yaml, dir: runs/s, seeds: [1, 2], variants: {a: {}, b: {estimator.plugin: moons}}, \
             grid: {update.lr: [0.1, 0.2], update.entropy: [0]}}",
        )?;
        let names: Vec<&str> = jobs.iter().map(|job| &*job.name).collect();
        assert_eq!(names[..2], ["a-lr=0.1-entropy=0/seed-1", "a-lr=0.2-entropy=0/seed-1"]);
        assert_eq!((names.len(), names[7]), (8, "b-lr=0.2-entropy=0/seed-2"));
        assert_eq!(jobs[7].dir, Path::new("runs/s/b-lr=0.2-entropy=0/seed-2"));
        let recipe = &jobs[7].recipe;
        assert_eq!((&*recipe.estimator.plugin, recipe.update.lr, recipe.seed), ("moons", 0.2, 2));
        let mirrored =
            sweep("{recipe: base.yaml, seeds: [1, 2], variants: {a: {checkpoint.mirror: \"s3://runs/s/\"}}}")?;
        assert_eq!(mirrored[1].recipe.checkpoint.mirror.as_deref(), Some("s3://runs/s/a/seed-2"));
        assert!(mirrored[1].sets.iter().any(|set| set.contains("s3://runs/s/a/seed-2")), "{:?}", mirrored[1].sets);
        let alone = sweep("{recipe: base.yaml}")?;
        assert_eq!((alone.len(), &*alone[0].name, alone[0].recipe.seed), (1, "base/seed-9", 9));
        Ok(())
    }

    #[test]
    fn every_sweep_of_the_project_is_valid() -> Result<()> {
        for folder in ["smoke", "study", "textworld"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(folder).join("sweeps");
            for entry in std::fs::read_dir(&folder)? {
                assert!(!Sweep::read(&entry?.path())?.jobs()?.is_empty());
            }
        }
        Ok(())
    }

    #[test]
    fn a_bad_file_is_refused_with_key_and_remedy() {
        for (text, parts) in [
            ("{recipe: base.yaml, variants: {a/b: {}}}", ["variants.a/b", "names a folder"]),
            ("{recipe: base.yaml, variants: {a: 3}}", ["variants.a", "map of recipe keys"]),
            ("{recipe: base.yaml, grid: {update.lr: 3}}", ["grid.update.lr", "list of values"]),
            ("{recipe: base.yaml, grid: {seed: [3]}}", ["seeds", "the place for seeds"]),
            ("{recipe: base.yaml, seeds: [3, 3]}", ["seeds", "twice"]),
            ("{recipe: base.yaml, grid: {update.lr: [1.0e-5, 1.0e-5]}}", ["grid.update.lr", "twice"]),
            ("{recipe: base.yaml, grid: {update.lr: [1, 2, 1.0]}}", ["grid.update.lr", "names 1.0 twice"]),
            ("{recipe: base.yaml, grid: {model.path: [a/b, a_b]}}", ["two runs", "base-path=a_b/seed-9"]),
            ("{recipe: base.yaml, parallel: 0}", ["parallel", "at least 1"]),
            ("{recipe: base.yaml, threads: 4294967296}", ["threads", "at most 1024"]),
            ("{recipe: base.yaml, variants: {a: {update.lrr: 3}}}", ["variant a", "lrr"]),
            ("{recipe: base.yaml, seed: [3]}", ["seed", "seeds"]),
        ] {
            let message = sweep(text).map_or_else(|error| format!("{error:#}"), |_| "accepted".into());
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
    }
}
