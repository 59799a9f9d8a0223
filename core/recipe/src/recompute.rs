//! The choice of blocks that the backward pass recomputes, with its hand-written deserialisation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Blocks that the backward pass recomputes: `auto`, `all`, `none`, or the number of first blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// As many first blocks as the device's free memory requires.
    #[default]
    Auto,
    /// Every block: least memory.
    All,
    /// No block: least work.
    None,
    /// The first n blocks.
    #[serde(untagged)]
    Blocks(usize),
}

impl std::str::FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            _ => {
                text.parse().map(Self::Blocks).map_err(|_| "expected auto, all, none or a number of blocks".to_string())
            }
        }
    }
}

/// By hand, because serde's untagged form loses the cause of an error.
impl<'de> Deserialize<'de> for Recompute {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Recompute;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                write!(f, "`auto`, `all`, `none` or a number of blocks")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Recompute, E> {
                match text {
                    "auto" => Ok(Recompute::Auto),
                    "all" => Ok(Recompute::All),
                    "none" => Ok(Recompute::None),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_u64<E: serde::de::Error>(self, blocks: u64) -> Result<Recompute, E> {
                usize::try_from(blocks).map(Recompute::Blocks).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
