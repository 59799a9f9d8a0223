//! The configuration of the environment.

use nestor_retrieve::{CacheConfig, RetrieverConfig};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::information::Information;
use crate::questions::QuestionFiles;
use crate::reward::Reward;
use crate::world::WorldConfig;

/// The keys of `env.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// Needs no files.
#[schemars(example = serde_json::json!({"generate": {"entities": 400, "train": 300, "eval": 100, "size": "small"}}))]
#[schemars(extend("x-published" = published()))]
pub struct Config {
    /// Files of questions, for both splits.
    #[serde(default)]
    pub questions: Option<QuestionFiles>,
    /// The search engine.
    #[serde(default)]
    pub retriever: Option<RetrieverConfig>,
    /// Play in a generated world instead of files: its questions and, without `retriever`, a search by words in its corpus.
    #[serde(default)]
    pub generate: Option<WorldConfig>,
    /// The cache of answers to queries, which all episodes of a process share.
    #[serde(default)]
    pub cache: CacheConfig,
    /// Passages that a search shows.
    #[serde(default = "default_topk")]
    pub topk: usize,
    /// Turns after which an episode is cut. The last turn can only answer, so there is one fewer search.
    #[serde(default = "default_max_steps")]
    pub max_steps: u32,
    /// The form in which the policy sees the passages.
    #[serde(default)]
    pub information: Information,
    /// The reward at the end.
    #[serde(default)]
    pub reward: Reward,
}

fn default_topk() -> usize {
    3
}

fn default_max_steps() -> u32 {
    4
}

/// The settings of verl-agent's runs (examples/gigpo_trainer), which `nestor init` writes for a pretrained model. Without their
/// questions they are played in a generated world.
fn published() -> serde_json::Value {
    let questions = serde_json::json!({
        "train": "data/search/train.parquet", "eval": "data/search/test.parquet", "train_sources": ["nq", "hotpotqa"],
        "eval_per_source": 74, "duplicates": "keep",
    });
    let retriever = serde_json::json!({"http": {"url": "http://127.0.0.1:8000/retrieve"}});
    serde_json::json!({
        "config": [
            {
                "questions": questions, "retriever": retriever, "topk": 3, "max_steps": 4, "information": "verl_agent",
                "reward": "em",
            },
            {"generate": {"size": "real"}, "topk": 3, "max_steps": 4, "information": "verl_agent", "reward": "em"},
        ],
        "iterations": 200,
        "rollout": {
            "tasks": 256, "group_size": 5, "max_prompt_tokens": 4096, "max_response_tokens": 512, "slots": 256,
            "env_threads": 64, "history": {"length": 4}, "truncation": "left", "invalid_action_penalty": 0.01,
        },
        "update": {
            "mini_batch": 512, "micro_batch_tokens": 16000, "warmup": 20, "entropy": 0.0, "kl": {"coef": 0.001, "kind": "k3"},
        },
        "eval": {"tasks": 512, "every": 50, "temperature": 0.0},
        "checkpoint": {"every": 50},
    })
}
