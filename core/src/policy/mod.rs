//! The policy's arithmetic: log-probs, losses and gradients over packed sequences.

pub mod attention;
pub mod loss;
pub mod packed;
pub mod pass;
pub mod schedule;
pub mod score;
pub mod update;

pub use packed::Packed;
pub use pass::{PassOptions, TokenGrads, TokenStats, accumulate_gradients, token_stats};
