//! The generator's random numbers.

use std::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Size;

/// Random choices. ChaCha8 gives the same numbers in every release, so a catalogue never changes.
pub struct Dice(ChaCha8Rng);

/// The parts of a product that are drawn apart from each other.
#[derive(Clone, Copy)]
pub enum Part {
    /// Kind, brand and attributes, which near-duplicates share.
    Core,
    /// All else.
    Rest,
}

impl Dice {
    /// Dice for a part of product `n`.
    pub fn new(seed: u64, size: Size, n: u64, part: Part) -> Dice {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&n.to_le_bytes());
        (key[16], key[17]) = (size as u8, part as u8);
        Dice(ChaCha8Rng::from_seed(key))
    }

    /// Returns a number below `n`; `n` is small, so the bias of one multiplication does not matter.
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.0.next_u32()) * n as u64) >> 32) as usize
    }

    /// Returns a number of the range.
    pub fn between(&mut self, range: &RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Returns a number from 0 up to, but not including, 1.
    pub fn fraction(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / 4_294_967_296.0
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.fraction() < probability
    }

    /// Returns one of the choices, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns one of the entries, of which there is at least one.
    pub fn pick_of<T: Default>(&mut self, mut entries: impl Iterator<Item = T> + Clone) -> T {
        let which = self.below(entries.clone().count());
        entries.nth(which).unwrap_or_default()
    }

    /// Returns this many of the entries (all, if there are fewer), in their order.
    pub fn some_of<T>(&mut self, count: usize, entries: impl Iterator<Item = T> + Clone) -> Vec<T> {
        let mut left = entries.clone().count();
        let mut wanted = count.min(left);
        entries
            .filter(|_| {
                let taken = self.below(left) < wanted;
                left -= 1;
                wanted -= usize::from(taken);
                taken
            })
            .collect()
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
