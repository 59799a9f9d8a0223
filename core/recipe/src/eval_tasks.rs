//! The size of an evaluation, with its hand-written deserialisation.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tasks of an evaluation: `all`, `none`, or their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvalTasks {
    /// Every task of the split.
    All,
    /// No evaluation.
    None,
    /// A panel of n tasks that the seed draws from the whole split; at most as many as the split has.
    #[serde(untagged)]
    Panel(u32),
}

impl EvalTasks {
    /// Number of tasks in a split of `count`.
    pub fn number(self, count: u64) -> u64 {
        match self {
            Self::All => count,
            Self::None => 0,
            Self::Panel(tasks) => u64::from(tasks),
        }
    }
}

impl fmt::Display for EvalTasks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::None => f.write_str("none"),
            Self::Panel(tasks) => write!(f, "{tasks}"),
        }
    }
}

/// By hand, because serde's untagged form loses the cause of an error.
impl<'de> Deserialize<'de> for EvalTasks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = EvalTasks;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("`all`, `none` or a number of tasks")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<EvalTasks, E> {
                match text {
                    "all" => Ok(EvalTasks::All),
                    "none" => Ok(EvalTasks::None),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_u64<E: serde::de::Error>(self, tasks: u64) -> Result<EvalTasks, E> {
                u32::try_from(tasks).map(EvalTasks::Panel).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
