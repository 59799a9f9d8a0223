//! A workload of `nestor bench`: a YAML file from which a script is drawn. Those of the project are in `recipes/bench`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::input_error;
use crate::recipe::{PluginChoice, Problem, load_as};

/// The folder of named workloads, relative to the working directory.
const FOLDER: &str = "recipes/bench";

/// Limits that catch a number with a digit too many.
const MOST_ENVS: usize = 1 << 20;
const MOST_LENGTH: usize = 1 << 24;

/// The work of a benchmark. Lengths are in tokens.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Number of environments.
    pub envs: usize,
    /// Turns of an episode.
    pub turns: Ragged,
    /// Different states of a task; as many as the most turns if left out.
    #[serde(default)]
    pub states: Option<usize>,
    /// Parts of a prompt.
    pub prompt: PromptParts,
    /// Tokens of a response.
    pub response: Ragged,
    /// The advantage estimator plugin of an iteration.
    pub estimator: PluginChoice,
    /// Steps per optimizer step of an iteration; all steps if left out.
    #[serde(default)]
    pub mini_batch: Option<usize>,
    /// Weight of the KL loss against a frozen reference in an iteration; 0 for no reference.
    #[serde(default)]
    pub kl: f64,
    /// Shape of a network with random weights, used without `--model`; as `nestor model new` names it.
    #[serde(default)]
    pub shape: Option<String>,
}

/// Lengths of the parts of a prompt.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptParts {
    /// Instruction, the same in all prompts.
    pub instruction: usize,
    /// Task, the same in a group.
    pub task: usize,
    /// Observation of a state.
    pub observation: Span,
    /// Action, as later prompts repeat it.
    pub action: Span,
    /// Admissible actions; later prompts do not repeat them.
    pub admissible: Span,
    /// True if the admissible actions depend on the state alone.
    #[serde(default)]
    pub admissible_by_state: bool,
    /// Past turns (observation and action) that a prompt repeats, in a window history.
    #[serde(default = "two")]
    pub history: usize,
    /// Mean length of a whole prompt (window history), made exact by the length of `admissible`.
    #[serde(default)]
    pub mean: Option<f64>,
}

fn two() -> usize {
    2
}

/// Lengths from `least` to `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The smallest length.
    pub least: usize,
    /// The largest length.
    pub most: usize,
}

impl Span {
    pub(super) fn middle(self) -> f64 {
        (self.least + self.most) as f64 / 2.0
    }
}

/// Skewed lengths from `least` to `most` with an exact total.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ragged {
    /// The smallest length.
    pub least: usize,
    /// The largest length.
    pub most: usize,
    /// The mean length.
    pub mean: f64,
}

impl Ragged {
    pub(super) fn span(self) -> Span {
        Span { least: self.least, most: self.most }
    }
}

impl Workload {
    /// Reads the workload of a command line: a path (with a `/` or the ending `.yaml`), or a name, short for
    /// `recipes/bench/NAME.yaml` in the working directory.
    pub fn load(name: &str) -> Result<Self> {
        let is_path = name.contains('/') || name.ends_with(".yaml");
        let path = if is_path { PathBuf::from(name) } else { Path::new(FOLDER).join(format!("{name}.yaml")) };
        if !path.is_file() {
            return Err(input_error!(
                "--workload {name}: there is no file {}; {}name one of {FOLDER} from the root of the repository, or give \
                 the path of a workload's YAML file",
                path.display(),
                known()
            ));
        }
        load_as(&path, Self::problem)
    }

    fn problem(&self) -> Option<Problem> {
        let p = &self.prompt;
        let ragged = |path: &str, lengths: Ragged| {
            span(path, lengths.span()).or_else(|| {
                let fits = (lengths.least as f64..=lengths.most as f64).contains(&lengths.mean);
                let message = format!("must be from {} to {}, but is {}", lengths.least, lengths.most, lengths.mean);
                (!fits).then(|| (format!("{path}.mean"), message))
            })
        };
        None.or_else(|| count("envs", self.envs, 1, MOST_ENVS))
            .or_else(|| ragged("turns", self.turns))
            .or_else(|| self.states.and_then(|states| count("states", states, 1, MOST_LENGTH)))
            .or_else(|| count("prompt.instruction", p.instruction, 0, MOST_LENGTH))
            .or_else(|| count("prompt.task", p.task, 0, MOST_LENGTH))
            .or_else(|| span("prompt.observation", p.observation))
            .or_else(|| span("prompt.action", p.action))
            .or_else(|| span("prompt.admissible", p.admissible))
            .or_else(|| {
                let mean = p.mean.filter(|mean| !(1.0..=MOST_LENGTH as f64).contains(mean))?;
                Some(("prompt.mean".into(), format!("must be from 1 to {MOST_LENGTH}, but is {mean}")))
            })
            .or_else(|| ragged("response", self.response))
            .or_else(|| count("mini_batch", self.mini_batch.unwrap_or(1), 1, usize::MAX))
            .or_else(|| (self.kl < 0.0).then(|| ("kl".into(), format!("must be 0 or more, but is {}", self.kl))))
    }
}

/// Lists the named workloads, for an error.
fn known() -> String {
    let files = std::fs::read_dir(FOLDER).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_string()))
        .collect();
    names.sort();
    if names.is_empty() { String::new() } else { format!("known here: {}; ", names.join(", ")) }
}

fn count(path: &str, value: usize, least: usize, most: usize) -> Option<Problem> {
    let message = || format!("must be from {least} to {most}, but is {value}");
    (!(least..=most).contains(&value)).then(|| (path.into(), message()))
}

fn span(path: &str, span: Span) -> Option<Problem> {
    count(&format!("{path}.least"), span.least, 1, MOST_LENGTH)
        .or_else(|| count(&format!("{path}.most"), span.most, span.least, MOST_LENGTH))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The files of the project, by name.
    pub fn bundled() -> Vec<(String, PathBuf)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
        let paths =
            std::fs::read_dir(folder).expect("the folder of workloads").map(|entry| entry.expect("a file").path());
        let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
        let mut files: Vec<_> = paths.map(|path| (name(&path), path)).collect();
        files.sort();
        files
    }

    /// A bundled workload.
    pub fn workload(name: &str) -> Workload {
        let (_, path) = bundled().into_iter().find(|(known, _)| known == name).expect("a workload");
        Workload::load(&path.display().to_string()).expect("a sound workload")
    }

    #[test]
    fn every_workload_loads_and_has_a_header() {
        assert!(bundled().len() >= 2);
        for (name, path) in bundled() {
            Workload::load(&path.display().to_string()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let text = std::fs::read_to_string(&path).expect("the text");
            assert!(text.lines().take(3).all(|line| line.starts_with('#')), "{name} has no header");
        }
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let text = std::fs::read_to_string(&bundled().iter().find(|(name, _)| name == "multi-turn").expect("it").1);
        let text = text.expect("the text");
        let dir = std::env::temp_dir().join(format!("nestor-workload-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("w.yaml");
        for (old, new, wanted) in [
            ("envs: 32", "envz: 32", "w.yaml:4:1: unknown key `envz`; did you mean `envs`?"),
            ("envs: 32", "envs: 0", "w.yaml:4:1: `envs` must be from 1 to 1048576, but is 0"),
            ("mean: 5", "mean: 9", "w.yaml:5:28: `turns.mean` must be from 2 to 8, but is 9"),
            ("least: 8, most: 96", "least: 8, most: 7", "w.yaml:12:22: `response.most` must be from 8 to"),
            ("estimator: {plugin", "estimator: {plugins", "w.yaml:13:13: unknown key `estimator.plugins`"),
        ] {
            assert!(text.contains(old), "{old}");
            std::fs::write(&path, text.replacen(old, new, 1)).expect("a file");
            let error = Workload::load(&path.display().to_string()).expect_err("a damaged workload").to_string();
            assert!(error.contains(wanted), "{error}");
        }
        std::fs::remove_dir_all(dir).expect("removed");
        let error = Workload::load("no-such-workload").expect_err("a missing workload").to_string();
        assert!(error.starts_with("--workload no-such-workload: there is no file recipes/bench/no-such"), "{error}");
    }
}
