//! The section `warm_start` of a recipe: supervised learning before reinforcement learning.

use schemars::{JsonSchema, Schema, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::Schedule;
use super::defaults::yes;

/// Supervised learning before reinforcement learning: imitation of the environment's expert, or of the chats of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmStart {
    /// Files of chats to learn in place of the expert's episodes, in JSON Lines or Parquet: one, or a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_more")]
    #[schemars(schema_with = "files")]
    pub data: Vec<String>,
    /// Number of optimizer steps. With `data`, `epochs` may be given in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Passes over `data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Environment steps per optimizer step; with `data`, chats.
    pub batch: usize,
    /// Peak learning rate.
    pub lr: f64,
    /// Optimizer steps in which the learning rate rises from `lr` * `min_lr_ratio` to `lr`.
    #[serde(default)]
    pub warmup: u64,
    /// The learning rate after the warm-up.
    #[serde(default)]
    pub schedule: Schedule,
    /// Lowest learning rate, as a share of `lr`.
    #[serde(default)]
    pub min_lr_ratio: f64,
    /// Share of the expert's actions replaced by random valid ones.
    #[serde(default)]
    pub expert_noise: f64,
    /// Draws a new order of `data` for each epoch.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Longest chat in tokens. By default the longest prompt and response of `rollout`, or its longest conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Treatment of longer chats.
    #[serde(default)]
    pub too_long: TooLong,
    /// Files of chats on which the loss is measured, and that are not learned: one, or a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_more")]
    #[schemars(schema_with = "files")]
    pub validation: Vec<String>,
    /// Share of `data` that is held out for this, in place of `validation`.
    #[serde(default)]
    pub validation_share: f64,
    /// Optimizer steps between two measurements; by default a tenth of all. The last step is always measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate_every: Option<u64>,
}

/// Treatment of chats that are too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// Leaves them out, with a warning that has their number.
    #[default]
    Drop,
    /// Keeps their first tokens.
    Cut,
}

impl WarmStart {
    /// Number of optimizer steps of a warm start on `chats` chats, or on the expert's episodes.
    pub fn steps(&self, chats: usize) -> u64 {
        let by_epochs = || self.epochs.map(|epochs| (epochs * self.steps_per_epoch(chats) as f64).ceil() as u64);
        self.steps.or_else(by_epochs).unwrap_or(0)
    }

    /// Optimizer steps of one pass over `chats` chats; the last one may be smaller than the others.
    pub fn steps_per_epoch(&self, chats: usize) -> u64 {
        chats.div_ceil(self.batch) as u64
    }
}

/// Reads one path, or a list of them.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("a path or a list of paths")
        }

        fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<Vec<String>, E> {
            Ok(vec![path.into()])
        }

        fn visit_unit<E: serde::de::Error>(self) -> Result<Vec<String>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<String>, A::Error> {
            let mut all = Vec::new();
            while let Some(path) = items.next_element()? {
                all.push(path);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Visitor)
}

fn files(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "string", "description": "One file." },
        { "type": "array", "items": { "type": "string" }, "description": "Several, whose rows count as those of one." },
    ]})
}
