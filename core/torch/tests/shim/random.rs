//! Random shapes and numbers of one case.

use tch::{Kind, Tensor};

/// A number from the environment.
pub fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// SplitMix64: each case has a generator of its own, so it can be run again alone.
pub struct Random(u64);

impl Random {
    pub fn new(case: u64) -> Self {
        Self(case.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In [0, 1), with 24 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 40) as f64 / f64::from(1 << 24)
    }

    pub fn below(&mut self, n: i64) -> i64 {
        (self.bits() % n as u64) as i64
    }

    pub fn one_in(&mut self, n: i64) -> bool {
        self.below(n) == 0
    }

    /// The numbers below n in random order.
    pub fn permutation(&mut self, n: i64) -> Vec<i64> {
        let mut order: Vec<i64> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i as usize, self.below(i + 1) as usize);
        }
        order
    }

    /// An edge, or a number from 1 to `most`.
    pub fn width(&mut self, edges: &[i64], most: i64) -> i64 {
        if self.one_in(3) { edges[self.below(edges.len() as i64) as usize] } else { 1 + self.below(most) }
    }

    /// Normal numbers of mean 0 and variance 1, float32.
    pub fn normal(&mut self, size: &[i64]) -> Tensor {
        self.scaled(size, 1.0, Kind::Float)
    }

    /// The same times a scale, rounded to a type.
    pub fn scaled(&mut self, size: &[i64], scale: f64, kind: Kind) -> Tensor {
        let n: i64 = size.iter().product();
        let mut one = || {
            let (radius, angle) = ((-2.0 * (1.0 - self.uniform()).ln()).sqrt(), std::f64::consts::TAU * self.uniform());
            scale * radius * angle.cos()
        };
        let numbers: Vec<f64> = (0..n).map(|_| one()).collect();
        Tensor::from_slice(&numbers).view(size).to_kind(kind)
    }
}
