//! Results of a tower by the content of images: siblings and later turns show the same images again.

use lru::LruCache;
use nestor_images::ImageKey;
use tch::Tensor;

/// Work since the counters were last taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImageCounters {
    /// Images whose embeddings were computed.
    pub encoded: u64,
    /// Images of prompts whose embeddings were in the cache instead.
    pub reused: u64,
}

/// Embeddings of images, and the tower's states before the merger where the merger alone is trained.
#[derive(Debug)]
pub struct ImageCache {
    /// (M, E) each.
    pub embeddings: Entries,
    /// (P, W) each, in the order of a pass of the image alone.
    pub states: Entries,
    pub counters: ImageCounters,
}

/// Tensors of images, the longest unused first to go.
#[derive(Debug)]
pub struct Entries {
    entries: LruCache<ImageKey, Tensor>,
    /// Most rows of all tensors.
    limit: i64,
    rows: i64,
}

impl ImageCache {
    /// A cache of embeddings of at most this many tokens.
    pub fn new(tokens: usize) -> Self {
        let entries = || Entries { entries: LruCache::unbounded(), limit: tokens as i64, rows: 0 };
        Self { embeddings: entries(), states: entries(), counters: ImageCounters::default() }
    }

    /// An empty cache with the same room.
    pub fn fresh(&self) -> Self {
        Self::new(self.embeddings.limit as usize)
    }

    /// The work since the last call.
    pub fn take_counters(&mut self) -> ImageCounters {
        std::mem::take(&mut self.counters)
    }
}

impl Entries {
    pub fn get(&mut self, key: ImageKey) -> Option<Tensor> {
        self.entries.get(&key).map(Tensor::shallow_clone)
    }

    pub fn contains(&self, key: ImageKey) -> bool {
        self.entries.contains(&key)
    }

    /// Keeps a tensor, and drops the longest unused ones that have no room beside it.
    pub fn put(&mut self, key: ImageKey, tensor: &Tensor) {
        let rows = tensor.size()[0];
        if rows > self.limit {
            return;
        }
        self.rows += rows;
        if let Some(before) = self.entries.put(key, tensor.shallow_clone()) {
            self.rows -= before.size()[0];
        }
        while self.rows > self.limit
            && let Some((_, oldest)) = self.entries.pop_lru()
        {
            self.rows -= oldest.size()[0];
        }
    }

    /// Frees everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.rows = 0;
    }

    /// Rows of all tensors.
    pub fn rows(&self) -> i64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use nestor_images::KeyedImage;
    use nestor_plugin::Image;
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn the_longest_unused_make_room() {
        let key = |n: u8| KeyedImage::from(Image::new(1, 1, vec![n; 3]).expect("an image")).key();
        let rows = |n: i64| Tensor::zeros([n, 2], (Kind::Float, Device::Cpu));
        let mut entries = ImageCache::new(10).embeddings;
        entries.put(key(1), &rows(4));
        entries.put(key(2), &rows(4));
        assert!(entries.get(key(1)).is_some());
        entries.put(key(3), &rows(5));
        assert_eq!((entries.contains(key(1)), entries.contains(key(2)), entries.rows()), (true, false, 9));
        entries.put(key(3), &rows(5));
        assert_eq!(entries.rows(), 9, "the same image again");
        entries.put(key(4), &rows(11));
        assert!(!entries.contains(key(4)) && entries.contains(key(3)), "one that is larger than all room is not kept");
        entries.clear();
        assert_eq!((entries.rows(), entries.contains(key(1))), (0, false));
    }
}
