//! Bytes that were moved, as another thread may ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count of bytes that two threads share.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
