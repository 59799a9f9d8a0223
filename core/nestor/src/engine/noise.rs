//! Counter-based randomness: every draw has an address, so it depends on no earlier draw.
//!
//! The address (seed, stream, iteration, episode, step, token) is the key of a ChaCha8 generator. Order of admission,
//! number of slots, other episodes and a resumed run all leave the draws as they are.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Sampling while training.
pub const TRAIN: u32 = 0;
/// Sampling while evaluating.
pub const EVAL: u32 = 1;
/// Sampling for `nestor generate`.
pub const GENERATE: u32 = 2;
/// Seeds of environments.
pub const ENVIRONMENTS: u32 = 3;
/// Order of tasks.
pub const TASKS: u32 = 4;
/// Random actions among an expert's.
pub const EXPERT: u32 = 5;
/// Seeds of environments in evaluation.
pub const EVAL_ENVIRONMENTS: u32 = 6;
/// Order of sequences in an update.
pub const SHUFFLE: u32 = 7;
/// Seed of a warm start, from which its own draws are addressed.
pub const WARM_START: u32 = 8;

/// The tasks of an evaluation's panel.
pub const EVAL_TASKS: u32 = 9;
/// The tasks that a curriculum draws.
pub const CURRICULUM: u32 = 10;

/// Sampling for `nestor serve`.
pub const SERVE: u32 = 11;

/// A request's place in a run: the address of its sampling noise, apart from the token's number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NoiseKey {
    /// One of the streams of this module.
    pub stream: u32,
    /// Iteration of the run.
    pub iteration: u64,
    /// Episode inside the iteration.
    pub episode: u32,
    /// Step inside the episode.
    pub step: u32,
}

impl NoiseKey {
    /// The generator of one token (or other numbered draw) at this address.
    pub fn rng(&self, seed: u64, token: u32) -> ChaCha8Rng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..12].copy_from_slice(&self.stream.to_le_bytes());
        key[12..20].copy_from_slice(&self.iteration.to_le_bytes());
        key[20..24].copy_from_slice(&self.episode.to_le_bytes());
        key[24..28].copy_from_slice(&self.step.to_le_bytes());
        key[28..].copy_from_slice(&token.to_le_bytes());
        ChaCha8Rng::from_seed(key)
    }

    /// The uniform number in [0, 1) that picks one token; 24 bits, so that it is exact in float32.
    pub fn uniform(&self, seed: u64, token: u32) -> f32 {
        (self.rng(seed, token).next_u32() >> 8) as f32 / (1 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_address_matters() {
        let base = NoiseKey { stream: 1, iteration: 2, episode: 3, step: 4 };
        let draws = [
            base.uniform(5, 6),
            base.uniform(5, 7),
            base.uniform(6, 6),
            NoiseKey { stream: 2, ..base }.uniform(5, 6),
            NoiseKey { iteration: 3, ..base }.uniform(5, 6),
            NoiseKey { episode: 4, ..base }.uniform(5, 6),
            NoiseKey { step: 5, ..base }.uniform(5, 6),
        ];
        assert!((0..7).all(|i| (0..i).all(|j| draws[i] != draws[j])), "{draws:?}");
        assert_eq!(draws[0], base.uniform(5, 6));
    }
}
