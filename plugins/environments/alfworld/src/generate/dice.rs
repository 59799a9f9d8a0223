//! The generator's random numbers.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::ops::RangeInclusive;

/// Random choices. ChaCha8 gives the same numbers in every release, so a game never changes.
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// Seeds the dice by a key.
    pub fn new(key: [u8; 32]) -> Dice {
        Dice(ChaCha8Rng::from_seed(key))
    }

    /// Returns a number below `n`; `n` is tiny, so the bias of one multiplication does not matter.
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.0.next_u32()) * n as u64) >> 32) as usize
    }

    /// Returns a number of the range.
    pub fn between(&mut self, range: RangeInclusive<i32>) -> i32 {
        range.start() + self.below((range.end() - range.start() + 1) as usize) as i32
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        f64::from(self.0.next_u32()) < probability * 4_294_967_296.0
    }

    /// Returns one of the choices, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
