//! Chance that depends on names alone: the same catalogue gives the same prices and goals on every machine and in every
//! order of its files.

use sha2::{Digest, Sha256};

/// The seed with which the original engine shuffles its goals.
const SEED: u32 = 233;

/// The first eight bytes of SHA-256 of `233/PURPOSE/NAME/NAME…`, big-endian.
pub fn hash(purpose: &str, names: &[&str]) -> u64 {
    let mut digest = Sha256::new();
    digest.update(format!("{SEED}/{purpose}"));
    for name in names {
        digest.update("/");
        digest.update(name);
    }
    let bytes: [u8; 32] = digest.finalize().into();
    let (first, _) = bytes.split_first_chunk().expect("32 bytes are more than 8");
    u64::from_be_bytes(*first)
}

/// A number from 0 up to, but not including, 1.
pub fn fraction(purpose: &str, names: &[&str]) -> f64 {
    (hash(purpose, names) >> 11) as f64 / (1_u64 << 53) as f64
}
