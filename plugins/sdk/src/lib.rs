//! The plugin interface of Nestor. `nestor_plugin.h` is the source of truth; this crate is its safe Rust form.
//!
//! A plugin author implements [`Environment`] and [`Instance`] (and [`Expert`], [`Snapshot`] or [`Respond`]), or [`Estimator`] (and
//! [`Parts`], [`Columns`] or [`State`]), or [`Loss`], and writes one [`export!`]. [`WeightedParts`] is the short form of most
//! estimators. No plugin needs `unsafe`: this crate catches panics, parses configs, and carries text and arrays across. [`parse`] reads the usual tagged
//! responses. Estimators share pieces: [`stats`] of groups, sums along episodes ([`returns`]), definitions of states ([`anchor`]) and
//! a [`graph`] of them, and similarities of texts ([`difflib`], [`tfidf`]). [`Replayed`] holds an episode whose saved state is its
//! task and actions. [`recorded`] defines the form in which steps are recorded for tests and for `nestor advantage`. [`files`] opens
//! regular files alone, under limits. `mapped`, behind the feature of that name, reads large files in place.
//!
//! This crate is the only dependency that a plugin needs. It re-exports anyhow, serde, serde_json and schemars. A derive
//! then names the crate that its code refers to:
//!
//! ```
//! use nestor_plugin::schemars::JsonSchema;
//! use nestor_plugin::serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(crate = "nestor_plugin::serde", deny_unknown_fields)]
//! #[schemars(crate = "nestor_plugin::schemars")]
//! struct Config {
//!     /// Steps after which an episode is cut.
//!     max_steps: u32,
//! }
//! ```

#![warn(missing_docs)]

mod address;
pub mod anchor;
mod column;
mod config;
pub mod difflib;
mod environment;
mod estimator;
mod export;
pub mod ffi;
pub mod files;
pub mod graph;
mod guard;
mod image;
mod loss;
#[cfg(feature = "mapped")]
pub mod mapped;
mod message;
pub mod parse;
pub mod recorded;
mod replay;
mod respond;
pub mod returns;
mod rows;
pub mod stats;
mod success;
pub mod tfidf;
mod weighted;

pub use address::shown_address;
pub use anyhow;
pub use column::{Asked, Bytes, Column, Hidden, Values, View};
pub use config::{NoConfig, check_between, parse as parse_config, suggest};
#[doc(hidden)]
pub use environment::Functions as EnvironmentFunctions;
pub use environment::{Environment, Expert, Instance, Observation, Snapshot, Start};
#[doc(hidden)]
pub use estimator::Functions as EstimatorFunctions;
pub use estimator::{Columns, Estimator, Needs, Parts, Scores, State};
#[doc(hidden)]
pub use export::{describe, environment_component, estimator_component, extension, loss_component, table};
pub use image::Image;
pub use loss::{Loss, LossNeeds, Losses, Tokens};
pub use message::{Message, unless_chat};
pub use replay::{Replay, Replayed, running};
pub use respond::{Respond, Response, ToolCall};
pub use rows::Rows;
pub use schemars;
pub use serde;
pub use serde_json;
pub use success::Success;
pub use weighted::WeightedParts;

/// Returns the error for a split that an environment does not have.
pub fn unknown_split(split: &str, known: &[&str]) -> anyhow::Error {
    anyhow::anyhow!("split `{split}` is unknown{}", suggest(split, known))
}
