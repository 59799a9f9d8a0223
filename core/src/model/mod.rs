//! The policy network: configuration, weights in and out, and the Qwen2 forward pass.

pub mod config;
pub mod new;
pub mod qwen2;
pub mod weights;

pub use config::Config;
pub use qwen2::{Model, Rope};
