//! The best documents of a search.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A document that a search found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// The document's number, from 0 in the order of adding.
    pub document: u32,
    /// Its score, without a unit.
    pub score: f32,
}

/// Keeps the best of all hits that it is shown.
pub struct Best {
    /// The worst is on top.
    heap: BinaryHeap<Ranked>,
    size: usize,
}

/// A hit and its document's place in the order of ids. The greatest is the worst.
#[derive(PartialEq)]
struct Ranked {
    hit: Hit,
    rank: u32,
}

impl Best {
    pub fn new(size: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(size.min(1024) + 1), size }
    }

    /// Returns the least score that can still enter, given a good id.
    pub fn threshold(&self) -> f32 {
        match self.heap.peek() {
            Some(worst) if self.heap.len() == self.size => worst.hit.score,
            _ => f32::NEG_INFINITY,
        }
    }

    pub fn push(&mut self, hit: Hit, rank: u32) {
        let new = Ranked { hit, rank };
        if self.heap.len() < self.size {
            self.heap.push(new);
        } else if let Some(mut worst) = self.heap.peek_mut()
            && new < *worst
        {
            *worst = new;
        }
    }

    /// Returns the hits, best first.
    pub fn into_sorted(self) -> Vec<Hit> {
        self.heap.into_sorted_vec().into_iter().map(|ranked| ranked.hit).collect()
    }
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        other.hit.score.total_cmp(&self.hit.score).then(self.rank.cmp(&other.rank))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Rounds scores to four decimals, then lowers each that is not clearly under the one before it: Anserini's
/// `ScoreTiesAdjusterReranker`, in its precision.
pub fn adjust_ties(hits: &mut [Hit]) {
    let mut ties = 0;
    let mut previous = f32::INFINITY;
    for hit in hits {
        hit.score = ((f64::from(hit.score) * 10000.0).round() / 10000.0) as f32;
        if previous - hit.score > 1e-4 {
            ties = 0;
        } else {
            ties += 1;
            hit.score -= 1e-6 * ties as f32;
        }
        previous = hit.score;
    }
}
