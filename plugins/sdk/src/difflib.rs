//! Similarity of two texts: CPython's `difflib.SequenceMatcher(None, a, b).ratio()`, its "autojunk" rule included.
//!
//! ratio = 2 M / (|a| + |b|) over code points, M the length of all matching blocks: the longest common block (the first
//! of equals), then the same to its left and to its right. If |b| >= 200, characters that occur in b more than |b| /
//! 100 + 1 times start no match, they only extend one. The measure is not symmetric.

use std::collections::HashMap;

/// A text prepared for comparisons.
#[derive(Debug)]
pub struct Text {
    chars: Vec<char>,
    /// Number of occurrences of each character.
    counts: HashMap<char, usize>,
    /// Positions of each character, ascending; without the popular ones of a long text.
    positions: HashMap<char, Vec<usize>>,
}

impl Text {
    /// Prepares a text.
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut positions: HashMap<char, Vec<usize>> = HashMap::new();
        for (i, &c) in chars.iter().enumerate() {
            positions.entry(c).or_default().push(i);
        }
        let counts = positions.iter().map(|(&c, at)| (c, at.len())).collect();
        if chars.len() >= 200 {
            let popular = chars.len() / 100 + 1;
            positions.retain(|_, at| at.len() <= popular);
        }
        Self { chars, counts, positions }
    }

    /// Returns `ratio(self, other) >= threshold`, by cheap upper bounds first.
    pub fn similar(&self, other: &Text, threshold: f64) -> bool {
        let shorter = self.chars.len().min(other.chars.len());
        let shared = || self.counts.iter().map(|(c, n)| *n.min(other.counts.get(c).unwrap_or(&0))).sum();
        self.as_ratio(other, shorter) >= threshold
            && self.as_ratio(other, shared()) >= threshold
            && self.ratio(other) >= threshold
    }

    /// Returns the ratio, with `self` as a and `other` as b.
    pub fn ratio(&self, other: &Text) -> f64 {
        self.as_ratio(other, self.matches(other))
    }

    fn as_ratio(&self, other: &Text, matches: usize) -> f64 {
        match self.chars.len() + other.chars.len() {
            0 => 1.0,
            length => 2.0 * matches as f64 / length as f64,
        }
    }

    /// Returns M.
    fn matches(&self, other: &Text) -> usize {
        let mut total = 0;
        let mut open = vec![Window { a: (0, self.chars.len()), b: (0, other.chars.len()) }];
        while let Some(window) = open.pop() {
            let Block { a, b, size } = self.longest(other, &window);
            if size == 0 {
                continue;
            }
            total += size;
            open.push(Window { a: (window.a.0, a), b: (window.b.0, b) });
            open.push(Window { a: (a + size, window.a.1), b: (b + size, window.b.1) });
        }
        total
    }

    /// Returns the longest block that starts with an indexed character, the first in a and then in b among equals,
    /// extended by equal characters on both sides.
    fn longest(&self, other: &Text, window: &Window) -> Block {
        let mut best = Block { a: window.a.0, b: window.b.0, size: 0 };
        // Length of the block that ends at (i - 1, j), by j; only the lengths for i - 1 are kept.
        let mut before: HashMap<usize, usize> = HashMap::new();
        for i in window.a.0..window.a.1 {
            let mut here = HashMap::new();
            let places = other.positions.get(&self.chars[i]).map(Vec::as_slice).unwrap_or_default();
            let start = places.partition_point(|&j| j < window.b.0);
            for &j in places[start..].iter().take_while(|&&j| j < window.b.1) {
                let size = 1 + j.checked_sub(1).and_then(|j| before.get(&j)).copied().unwrap_or(0);
                here.insert(j, size);
                if size > best.size {
                    best = Block { a: i + 1 - size, b: j + 1 - size, size };
                }
            }
            before = here;
        }
        let (a, b) = (&self.chars, &other.chars);
        while best.a > window.a.0 && best.b > window.b.0 && a[best.a - 1] == b[best.b - 1] {
            best = Block { a: best.a - 1, b: best.b - 1, size: best.size + 1 };
        }
        while best.a + best.size < window.a.1
            && best.b + best.size < window.b.1
            && a[best.a + best.size] == b[best.b + best.size]
        {
            best.size += 1;
        }
        best
    }
}

/// Half-open parts of both texts.
struct Window {
    a: (usize, usize),
    b: (usize, usize),
}

/// Equal parts of both texts.
#[derive(Clone, Copy)]
struct Block {
    a: usize,
    b: usize,
    size: usize,
}
