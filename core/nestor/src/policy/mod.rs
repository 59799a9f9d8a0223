//! The arithmetic of the policy and its critic: log-probs, values, losses and gradients over packed sequences.

pub mod critic;
pub mod update;
pub mod kl_reward;
mod reweight;
pub mod losses;
pub mod columns;
pub mod logprobs;
pub mod network;
pub mod batching;
mod vision;
pub mod lm_head;
pub mod backward;
pub mod recompute;
pub mod packing;
pub mod prefix_tree;

pub use lm_head::{PassOptions, TokenGrads, TokenStats, policy_gradients, token_stats};
pub use network::Network;
pub use packing::Packed;
