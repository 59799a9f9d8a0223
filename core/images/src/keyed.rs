//! An image with the key of its content.

use nestor_plugin::Image;
use sha2::{Digest, Sha256};

/// SHA-256 of an image's size and pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageKey([u8; 32]);

impl ImageKey {
    fn of(image: &Image) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(image.width().to_le_bytes());
        hasher.update(image.height().to_le_bytes());
        hasher.update(image.rgb());
        Self(hasher.finalize().into())
    }

    /// The key in hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// An image with the key of its content. A clone shares the pixels.
#[derive(Clone)]
pub struct KeyedImage {
    image: Image,
    key: ImageKey,
}

impl KeyedImage {
    pub fn key(&self) -> ImageKey {
        self.key
    }

    pub fn image(&self) -> &Image {
        &self.image
    }
}

impl From<Image> for KeyedImage {
    fn from(image: Image) -> Self {
        Self { key: ImageKey::of(&image), image }
    }
}

/// Equal by content.
impl PartialEq for KeyedImage {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for KeyedImage {}

impl std::fmt::Debug for KeyedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.image, &self.key.hex()[..8])
    }
}
