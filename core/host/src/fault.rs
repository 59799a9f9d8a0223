//! The rules of the border that an answer of a plugin can break.

use serde::{Deserialize, Serialize};

/// A rule that the texts or images of a call broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Fault {
    #[error("a text of the plugin is null and yet has a length")]
    NullText,
    #[error("the plugin put over 256 MiB as its state")]
    State,
    #[error("the plugin put over 4 MiB of text in one call")]
    Bytes,
    #[error("the plugin put over 65536 texts in one call")]
    Texts,
    #[error("the plugin put over 64 images in one call; put fewer, or join some into one")]
    Images,
    #[error("{0}")]
    Image(ImageFault),
}

/// A rule that an image broke, and its number in the call, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("the plugin's image {number} {wrong}")]
pub struct ImageFault {
    pub number: usize,
    pub wrong: Wrong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Wrong {
    #[error("has {0} bytes; it must begin with 8 bytes of size: width and height as uint32 little-endian")]
    Size(usize),
    #[error("says {0}x{1} pixels; both sides must be at least 1")]
    Empty(u32, u32),
    #[error("says {0}x{1} pixels; all images of one call may have 16777216 together, so scale it down")]
    Pixels(u32, u32),
    #[error("says {width}x{height} pixels and has {bytes} bytes after its 8 bytes of size; it must have {}, 3 for each pixel{}",
        3 * pixels(*width, *height), channels(*width, *height, *bytes))]
    Bytes { width: u32, height: u32, bytes: u64 },
}

pub fn pixels(width: u32, height: u32) -> u64 {
    u64::from(width) * u64::from(height)
}

/// The end of a message where the bytes are those of another number of channels.
fn channels(width: u32, height: u32, bytes: u64) -> &'static str {
    match bytes.checked_div(pixels(width, height)).filter(|each| each * pixels(width, height) == bytes) {
        Some(4) => "; these are 4 channels, so leave out the alpha channel",
        Some(1) => "; this is 1 channel, so write each grey value three times",
        _ => "",
    }
}
