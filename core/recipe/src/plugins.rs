//! The keys by which a recipe chooses a plugin: `env` and `estimator`. The two sections repeat the keys that they share, since
//! serde cannot both flatten a struct and refuse unknown keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// GiB of data of a plugin's process where the recipe sets no limit.
const DEFAULT_MEMORY_GIB: f64 = 8.0;

/// The process that a plugin runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Processes of its own: one that hangs, crashes or leaves is ended, and another takes its place.
    Process,
    /// The trainer's process.
    None,
}

/// A plugin by id or file, its own configuration, and the limits of its calls and processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginChoice {
    /// Id of an installed plugin, or path of a plugin file.
    pub plugin: String,
    /// The plugin's own keys, which the plugin checks.
    #[serde(default = "empty_map")]
    pub config: serde_json::Value,
    /// The process that the plugin runs in; by default `none` for bundled plugins and `process` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<Isolation>,
    /// Seconds that one call may take; by default `env.timeout_s`. A longer call ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// GiB of data that a process of the plugin may hold, with `isolate: process`; 8 by default, and 0 sets no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<f64>,
    /// Seconds of CPU time that one call may use, with `isolate: process`; by default there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<u64>,
    /// SHA-256 of the plugin file in hexadecimal. A file with another one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl PluginChoice {
    /// A plugin with its configuration, and defaults for the rest.
    pub fn new(plugin: impl Into<String>, config: serde_json::Value) -> Self {
        Self {
            plugin: plugin.into(),
            config,
            isolate: None,
            timeout_s: None,
            memory_gib: None,
            cpu_s: None,
            sha256: None,
        }
    }

    /// The limit of a process's data in bytes; none without one.
    pub fn memory_bytes(&self) -> Option<u64> {
        let gib = self.memory_gib.unwrap_or(DEFAULT_MEMORY_GIB);
        (gib > 0.0).then_some((gib * f64::from(1 << 30)) as u64)
    }
}

/// An environment plugin by id or file, its own configuration, and the limits of its calls and processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvChoice {
    /// Id of an installed plugin, or path of a plugin file.
    pub plugin: String,
    /// In a list of environments, its name in metrics and files; by default the plugin. Every name comes once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// In a list of environments, its share of the groups relative to the others; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// In a list of environments, its split of training tasks; by default `rollout.split`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// In a list of environments, its split of evaluation tasks; by default `eval.split`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_split: Option<String>,
    /// The plugin's own keys, which the plugin checks.
    #[serde(default = "empty_map")]
    pub config: serde_json::Value,
    /// The process that the plugin runs in; by default `none` for bundled plugins and `process` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<Isolation>,
    /// Seconds that one call into a plugin may take, the estimator's too. A longer call of an episode counts as a failure
    /// (`rollout.env_errors`); any other ends the run.
    #[serde(default = "default_env_timeout_s")]
    pub timeout_s: u64,
    /// GiB of data that a process of the plugin may hold, with `isolate: process`; 8 by default, and 0 sets no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<f64>,
    /// Seconds of CPU time that one call may use, with `isolate: process`; by default there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<u64>,
    /// SHA-256 of the plugin file in hexadecimal. A file with another one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl EnvChoice {
    /// The choice in the form that both kinds of plugins have.
    pub fn choice(&self) -> PluginChoice {
        let Self { plugin, config, isolate, timeout_s, memory_gib, cpu_s, sha256, .. } = self.clone();
        PluginChoice { plugin, config, isolate, timeout_s: Some(timeout_s), memory_gib, cpu_s, sha256 }
    }

    /// Its name in metrics and files.
    pub fn name(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.plugin)
    }
}

/// An estimator plugin by id or file, its own configuration, the limits of its calls and its process, and its teacher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EstimatorChoice {
    /// Id of an installed plugin, or path of a plugin file.
    pub plugin: String,
    /// The plugin's own keys, which the plugin checks.
    #[serde(default = "empty_map")]
    pub config: serde_json::Value,
    /// The process that the plugin runs in; by default `none` for bundled plugins and `process` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<Isolation>,
    /// Seconds that one call may take; by default `env.timeout_s`. A longer call ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// GiB of data that the plugin's process may hold, with `isolate: process`; 8 by default, and 0 sets no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<f64>,
    /// Seconds of CPU time that one call may use, with `isolate: process`; by default there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<u64>,
    /// SHA-256 of the plugin file in hexadecimal. A file with another one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// A second, frozen model, for an estimator that asks for its log-probs (column `teacher_logprobs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<Teacher>,
}

impl EstimatorChoice {
    /// The choice in the form that both kinds of plugins have.
    pub fn choice(&self) -> PluginChoice {
        let Self { plugin, config, isolate, timeout_s, memory_gib, cpu_s, sha256, teacher: _ } = self.clone();
        PluginChoice { plugin, config, isolate, timeout_s, memory_gib, cpu_s, sha256 }
    }
}

/// A frozen model that scores the policy's responses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Teacher {
    /// A model folder in Hugging Face form, or the id of a model in the Hugging Face cache; with the policy's tokenizer.
    pub path: String,
    /// A prompt template of the teacher's own (minijinja), by default the policy's prompts. It may use `info`, the environment's info
    /// after the response, and `won`, beside the variables of `rollout.template`: context that the policy does not see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::text_file::schema")]
    pub template: Option<String>,
}

/// A frozen model beside the policy, which gives log-probs of its responses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrozenModel {
    /// A model folder in Hugging Face form, or the id of a model in the Hugging Face cache; with the policy's tokenizer.
    pub path: String,
}

fn empty_map() -> serde_json::Value {
    serde_json::Value::Object(serde_json::Map::new())
}
fn default_env_timeout_s() -> u64 {
    300
}
