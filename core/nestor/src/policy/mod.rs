//! The policy's arithmetic, and its critic's: log-probs, values, losses and gradients over packed sequences.

pub mod update;
pub mod critic;
pub mod deal;
pub mod network;
pub mod score;
pub mod reward;
pub mod loss;
pub mod surrogate;
pub mod aggregate;
pub mod schedule;
pub mod head;
pub mod softmax;
pub mod pass;
pub mod memory;
pub mod packed;
pub mod attention;

pub use head::{PassOptions, TokenGrads, TokenStats, policy_gradients, token_stats};
pub use network::Network;
pub use packed::Packed;
