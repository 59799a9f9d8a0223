//! Random numbers of weights: streams that a key of four words picks.

use std::f32::consts::TAU;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Last word of the keys of new weights. Keys begin with the seed, as the engine's noise keys do. There the last word is step and
/// token number, never both at their largest, so no stream of weights is one of noise.
pub const WEIGHTS: u64 = u64::MAX;
/// Last word of the keys of new adapters.
pub const ADAPTERS: u64 = u64::MAX - 1;

fn stream(key: [u64; 4]) -> ChaCha8Rng {
    let mut bytes = [0; 32];
    for (part, word) in bytes.chunks_exact_mut(8).zip(key) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(bytes)
}

/// `n` standard normal numbers, by Box and Muller.
pub fn normals(key: [u64; 4], n: i64) -> Vec<f32> {
    let mut rng = stream(key);
    let mut unit = || ((rng.next_u32() >> 8) as f32 + 0.5) / (1 << 24) as f32; // in (0, 1)
    let mut values = Vec::with_capacity(n as usize + 1);
    while values.len() < n as usize {
        let radius = (-2.0 * unit().ln()).sqrt();
        let (sin, cos) = (TAU * unit()).sin_cos();
        values.extend([radius * cos, radius * sin]);
    }
    values.truncate(n as usize);
    values
}

/// `n` uniform numbers within ±`bound`.
pub fn uniforms(key: [u64; 4], n: i64, bound: f32) -> Vec<f32> {
    let mut rng = stream(key);
    (0..n).map(|_| ((rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0) * bound).collect()
}
