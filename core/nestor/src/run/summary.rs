//! `run.json` in the run directory: the state of a run and the facts that do not change, for tools that read runs.

use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, spawn};
use std::time::Instant;

use anyhow::Result;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use tch::Device;

use crate::data::PluginFile;
use crate::files::{read_object, write_json};
use crate::model::{Model, StoredType, weights};
use crate::version::{COMMIT, VERSION};

/// The file's name.
pub const SUMMARY: &str = "run.json";

/// The state of a run. A killed run stays `running`, and nobody holds its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    /// All iterations are done.
    Done,
    /// A signal stopped the run, which a checkpoint lets resume.
    Stopped,
    Failed,
}

/// The content of the file.
#[derive(Debug, Clone, Serialize)]
struct Contents {
    nestor: &'static str,
    /// The commit that Nestor was built from, where the build knew it.
    commit: Option<&'static str>,
    torch: String,
    state: RunState,
    /// The run's first start, RFC 3339.
    started: String,
    /// This write.
    updated: String,
    /// Wall seconds of all lives of the run so far.
    seconds: f64,
    /// Number of the policy's parameters.
    parameters: i64,
    /// Number of its adapters' parameters.
    adapters: Option<i64>,
    /// The compute type, such as `float32`.
    dtype: &'static str,
    /// `cpu` or `cuda`.
    device: &'static str,
    ranks: usize,
    /// Id of the environment plugin; of several environments their names.
    environment: String,
    /// Id of the estimator plugin.
    estimator: String,
    /// SHA-256 of the weights that the run starts from, before a warm start of its own.
    start_weights: Option<String>,
}

/// Writes the summary of a run.
#[derive(Debug)]
pub struct RunSummary {
    path: PathBuf,
    /// Start of this life.
    began: Instant,
    /// Wall seconds of the lives before.
    before: f64,
    contents: Contents,
    /// Computes `start_weights` beside the run's start: large weights take long.
    fingerprint: Option<JoinHandle<Result<String>>>,
}

/// The facts of a run that its summary names.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub policy: &'a Model,
    /// The folder that the policy was loaded from.
    pub model_files: &'a Path,
    pub ranks: usize,
    pub environment: &'a str,
    pub estimator: &'a PluginFile,
}

impl RunSummary {
    /// Writes the file of a run that starts or resumes. The first start and the seconds of earlier lives come from the file
    /// that these left; `began` is the start of this life.
    pub fn begin(dir: &Path, facts: Facts, began: Instant) -> Result<Self> {
        let path = dir.join(SUMMARY);
        // The file is a record: damage to it must not stop a run.
        let earlier = read_object(&path).ok().flatten().unwrap_or_default();
        let text = |key: &str| earlier.get(key).and_then(|value| value.as_str());
        let started = text("started").filter(|time| DateTime::parse_from_rfc3339(time).is_ok()).map(str::to_string);
        let Facts { policy, model_files, ranks, environment, estimator } = facts;
        let start_weights = text("start_weights").map(str::to_string);
        let (folder, kind) = (model_files.to_path_buf(), policy.kind());
        let fingerprint = Some(spawn(move || weights::fingerprint(&folder, kind)));
        let contents = Contents {
            nestor: VERSION,
            commit: COMMIT,
            torch: nestor_torch::version(),
            state: RunState::Running,
            started: started.unwrap_or_else(now),
            updated: String::new(),
            seconds: 0.0,
            parameters: policy.numel(),
            adapters: policy.adapters.as_ref().map(|adapters| adapters.numel()),
            dtype: StoredType::of(policy.kind())?.name,
            device: if matches!(policy.device(), Device::Cuda(_)) { "cuda" } else { "cpu" },
            ranks,
            environment: environment.into(),
            estimator: estimator.id.clone(),
            start_weights,
        };
        let before = earlier.get("seconds").and_then(|value| value.as_f64()).unwrap_or(0.0);
        let mut summary = Self { path, began, before, contents, fingerprint };
        summary.write(RunState::Running)?;
        Ok(summary)
    }

    /// Writes the file anew.
    pub fn write(&mut self, state: RunState) -> Result<()> {
        let ready = |computing: &mut JoinHandle<_>| state != RunState::Running || computing.is_finished();
        if let Some(Ok(fingerprint)) = self.fingerprint.take_if(ready).map(JoinHandle::join) {
            // The run itself has read these files.
            self.contents.start_weights = fingerprint.ok().or(self.contents.start_weights.take());
        }
        let seconds = self.before + self.began.elapsed().as_secs_f64();
        self.contents.state = state;
        self.contents.updated = now();
        self.contents.seconds = (seconds * 1e3).round() / 1e3;
        write_json(&self.path, &serde_json::to_value(&self.contents)?)
    }
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Config, new};
    use tch::Kind;

    #[test]
    fn seconds_add_over_lives_and_the_first_start_stays() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let policy = new::random(&Config::shape("tiny")?, 1, Kind::Float, Device::Cpu)?;
        let plugin =
            |id: &str| PluginFile { id: id.into(), path: PathBuf::new(), sha256: String::new(), border: "1.0".into() };
        let (environment, estimator) = ("maze", &plugin("stars"));
        let model_files = &dir.path().join("model");
        weights::save_pretrained(&policy, model_files, None, Kind::Float)?;
        let facts = Facts { policy: &policy, model_files, ranks: 2, environment, estimator };
        let read = || read_object(&dir.path().join(SUMMARY)).map(Option::unwrap_or_default);
        let earlier = r#"{"started": "2026-01-02T03:04:05Z", "seconds": 100.5, "state": "running"}"#;
        std::fs::write(dir.path().join(SUMMARY), earlier)?;
        let mut summary = RunSummary::begin(dir.path(), facts, Instant::now())?;
        assert_eq!([&read()?["state"], &read()?["started"]], ["running", "2026-01-02T03:04:05Z"]);
        summary.write(RunState::Stopped)?;
        let written = read()?;
        assert_eq!([&written["state"], &written["environment"], &written["estimator"]], ["stopped", "maze", "stars"]);
        assert_eq!(written["start_weights"], weights::fingerprint(model_files, Kind::Float)?);
        assert!(written["seconds"].as_f64().is_some_and(|seconds| seconds >= 100.5));
        let counts = [&written["parameters"], &written["ranks"]].map(serde_json::Value::as_i64);
        assert_eq!(counts, [Some(policy.numel()), Some(2)]);
        // A damaged record stops no run.
        std::fs::write(dir.path().join(SUMMARY), "{")?;
        RunSummary::begin(dir.path(), facts, Instant::now())?;
        assert!(DateTime::parse_from_rfc3339(read()?["started"].as_str().expect("a time")).is_ok());
        Ok(())
    }
}
