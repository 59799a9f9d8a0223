//! Images in the network: the vision tower of Qwen2.5-VL, the places and positions of its embeddings among the tokens of a
//! sequence, and the cache of what it computed.

mod attention;
mod cache;
pub mod plan;
mod positions;
mod rows;
pub mod tower;

pub use cache::{ImageCache, ImageCounters};
pub use positions::{PlacedImage, blind, expand, place, placed, positions};
pub use rows::{ImagePart, ImageRows};
