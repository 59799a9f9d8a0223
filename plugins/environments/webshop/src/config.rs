//! The configuration of the environment.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::generate::Spec;

/// The keys of `env.config`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// Needs no files.
#[schemars(example = serde_json::json!({"generate": {"products": 300, "size": "small"}, "held_out": 200, "max_steps": 8, "raw_commands": true}))]
#[schemars(extend("x-published" = published()))]
pub struct Config {
    /// Folder of the shop's files: `items_shuffle_1000.json` and `items_ins_v2_1000.json`, or the full `items_shuffle.json`
    /// and `items_ins_v2.json`, and `items_human_ins.json`.
    #[serde(default)]
    pub data: Option<PathBuf>,
    /// Take the full files if the folder also has those of 1,000 products.
    #[serde(default)]
    pub full: bool,
    /// Folder of the index that `nestor-webshop index` made; by default `nestor_index` or `nestor_index_1000` in `data`, if
    /// it is there. A catalogue of over 256 MiB needs one.
    #[serde(default)]
    pub index: Option<PathBuf>,
    /// Play in a generated shop instead of files.
    #[serde(default)]
    pub generate: Option<Spec>,
    /// An exported list of goals (JSON). Without it, the plugin derives the goals from the catalogue.
    #[serde(default)]
    pub goals: Option<PathBuf>,
    /// Prices by ASIN (JSON). Without it, the plugin derives the price of a product with a price range from its ASIN.
    #[serde(default)]
    pub prices: Option<PathBuf>,
    /// Take the goals that people wrote instead of synthetic ones.
    #[serde(default)]
    pub human_goals: bool,
    /// Play this goal alone, by its place in the list of goals.
    #[serde(default)]
    pub goal: Option<u64>,
    /// Number of goals for split `eval`, from the start of the list. If omitted: 500, or half of a list of fewer than
    /// 1,000.
    #[serde(default)]
    pub held_out: Option<u64>,
    /// Steps after which an episode is cut. If omitted: 15, or no limit with raw_commands.
    #[serde(default)]
    pub max_steps: Option<u32>,
    /// Take each response as the action itself (`click[buy now]`) instead of a tagged answer. The observation is then the
    /// page's whole text, and `info` has `available_actions`.
    #[serde(default)]
    pub raw_commands: bool,
}

/// The settings of verl-agent's runs (examples/gigpo_trainer/run_webshop.sh), which `nestor init` writes for a pretrained model.
/// Without WebShop's own files they are played in a generated shop of as many products.
fn published() -> serde_json::Value {
    serde_json::json!({
        "config": [
            {"data": "data/webshop", "max_steps": 15},
            {"generate": {"products": 1000, "size": "real"}, "max_steps": 15},
        ],
        "iterations": 150,
        "rollout": {
            "tasks": 16, "group_size": 8, "max_prompt_tokens": 4096, "max_response_tokens": 512,
            "invalid_action_penalty": 0.1,
        },
        "update": {"mini_batch": 64, "micro_batch_tokens": 12000},
        "eval": {"tasks": 256, "every": 5, "temperature": 0.4},
    })
}
