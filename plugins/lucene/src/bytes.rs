//! Bytes to read in place.

use std::ops::Deref;

use nestor_plugin::mapped::Mapped;

/// Bytes of this process, or of a file.
pub enum Bytes {
    /// In memory.
    Owned(Vec<u8>),
    /// A mapped file.
    Mapped(Mapped),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Owned(bytes) => bytes,
            Bytes::Mapped(bytes) => bytes,
        }
    }
}
