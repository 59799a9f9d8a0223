//! The settings of a recipe that trade memory for time and leave its results as they are.

use serde::Serialize;

use crate::recipe::{Recipe, Recompute, Sharding};

/// The settings that `--fit` chooses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Knobs {
    /// Tokens per forward and backward pass.
    pub micro_batch_tokens: u64,
    /// Requests decoded at once.
    pub slots: u64,
    /// Capacity of the cache; none for the largest need of all slots.
    pub cache_tokens: Option<u64>,
    /// Blocks that the backward pass recomputes.
    pub recompute: Recompute,
    pub sharding: Sharding,
}

impl Knobs {
    /// The recipe's own.
    pub fn of(recipe: &Recipe) -> Self {
        Self {
            micro_batch_tokens: recipe.update.micro_batch_tokens as u64,
            slots: recipe.rollout.slots as u64,
            cache_tokens: recipe.rollout.cache_tokens.map(|tokens| tokens as u64),
            recompute: recipe.update.recompute,
            sharding: recipe.sharding,
        }
    }

    /// The arguments of `--set` that turn `other` into these.
    pub fn sets(&self, other: &Self) -> Vec<String> {
        let mut sets = Vec::new();
        let mut set = |changed: bool, key: &str, value: String| {
            if changed {
                sets.push(format!("{key}={value}"));
            }
        };
        let tokens = self.micro_batch_tokens;
        set(tokens != other.micro_batch_tokens, "update.micro_batch_tokens", tokens.to_string());
        set(self.slots != other.slots, "rollout.slots", self.slots.to_string());
        let cache = self.cache_tokens.map_or("null".into(), |tokens| tokens.to_string());
        set(self.cache_tokens != other.cache_tokens, "rollout.cache_tokens", cache);
        let recompute = match self.recompute {
            Recompute::Auto => "auto".into(),
            Recompute::All => "all".into(),
            Recompute::None => "none".into(),
            Recompute::Blocks(n) => n.to_string(),
        };
        set(self.recompute != other.recompute, "update.recompute", recompute);
        let sharding = match self.sharding {
            Sharding::Full => "full",
            Sharding::GradOp => "grad_op",
            Sharding::None => "none",
        };
        set(self.sharding != other.sharding, "sharding", sharding.into());
        sets
    }
}
