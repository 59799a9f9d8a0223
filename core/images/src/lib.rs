//! Images that a policy sees: decoded under limits, keyed by their content, and cut into the patches of a vision model.
//! Needs no libtorch.

#![forbid(unsafe_code)]

mod config;
mod decode;
mod keyed;
mod png;
mod processor;
mod resize;

pub use decode::{MOST_PIXELS, decode, read_image};
pub use keyed::{ImageKey, KeyedImage};
pub use nestor_plugin::Image;
pub use processor::{Grid, Patches, Processor};
