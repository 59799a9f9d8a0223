//! Keys and values of the running requests: one preallocated tensor per block, one row of tokens per slot.

use tch::{Device, Kind, Tensor};

use crate::model::Config;

/// The cache of all blocks. It grows by need, up to the limits it was made with, and never shrinks but by `clear`.
#[derive(Debug)]
pub struct Cache {
    /// Per block (2, slots, length, K, D): keys, then values. Unwritten places are 0, never NaN: masked places are
    /// still multiplied (by 0).
    blocks: Vec<Tensor>,
    slots: i64,
    length: i64,
    limit: (i64, i64),
}

impl Cache {
    /// An empty cache that may grow to this many slots and tokens per slot.
    pub fn new(slots: usize, capacity: usize) -> Self {
        Self { blocks: Vec::new(), slots: 0, length: 0, limit: (slots as i64, capacity as i64) }
    }

    /// Tokens per slot that are allocated now.
    pub fn length(&self) -> i64 {
        self.length
    }

    /// Frees the memory.
    pub fn clear(&mut self) {
        *self = Self { blocks: Vec::new(), slots: 0, length: 0, limit: self.limit };
    }

    /// Makes room for this many slots and tokens per slot, half as much again to grow seldom.
    pub fn reserve(&mut self, slots: usize, length: usize, config: &Config, options: (Kind, Device)) {
        let grow =
            |have: i64, need: i64, limit: i64| if need <= have { have } else { need.max(have * 3 / 2).min(limit) };
        let slots = grow(self.slots, slots as i64, self.limit.0);
        let length = grow(self.length, length.next_multiple_of(64) as i64, self.limit.1);
        if (slots, length) == (self.slots, self.length) && !self.blocks.is_empty() {
            return;
        }
        let shape = [2, slots, length, config.num_key_value_heads, config.head_dim()];
        self.blocks
            .resize_with(config.num_hidden_layers as usize, || Tensor::zeros([2, 0, 0, shape[3], shape[4]], options));
        for block in &mut self.blocks {
            let larger = Tensor::zeros(shape, options);
            if self.slots > 0 {
                larger.narrow(1, 0, self.slots).narrow(2, 0, self.length).copy_(block);
            }
            *block = larger;
        }
        (self.slots, self.length) = (slots, length);
    }

    /// Where token `position` of a slot lies on the flat token axis that [`Cache::write`] takes.
    pub fn place(&self, slot: usize, position: usize) -> i64 {
        slot as i64 * self.length + position as i64
    }

    /// Writes keys and values (T, K, D) to the given places (T).
    pub fn write(&self, block: usize, places: &Tensor, k: &Tensor, v: &Tensor) {
        let [_, _, _, kv_heads, dim] = self.blocks[block].size()[..] else { unreachable!("the cache has five axes") };
        for (half, source) in [k, v].into_iter().enumerate() {
            let mut flat = self.blocks[block].select(0, half as i64).view([-1, kv_heads, dim]);
            let _ = flat.index_copy_(0, places, source);
        }
    }

    /// Keys and values of the first `slots` slots and `length` tokens, each (slots, K, length, D); views.
    pub fn read(&self, block: usize, slots: i64, length: i64) -> (Tensor, Tensor) {
        let view = |half| self.blocks[block].select(0, half).narrow(0, 0, slots).narrow(1, 0, length).transpose(1, 2);
        (view(0), view(1))
    }

    /// Copies the first `length` tokens of one slot to another.
    pub fn copy(&self, from: usize, to: usize, length: usize) {
        for block in &self.blocks {
            let row = |slot: usize| block.select(1, slot as i64).narrow(1, 0, length as i64);
            row(to).copy_(&row(from));
        }
    }
}
