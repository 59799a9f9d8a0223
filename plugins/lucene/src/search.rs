//! Scores documents window by window and skips those that cannot be among the best.
//!
//! This is MaxScore (Turtle and Flood 1995) with bounds for each window. The terms keep one order, so that each document's
//! score is the same sum, whatever is skipped. The heavy terms that a good document needs are added up for the whole window.
//! Light ones, which together cannot reach the worst of the best, are added only to documents that may still enter.

use anyhow::{Context, Result, ensure};

use crate::bm25::part;
use crate::format::{Block, DAMAGED, HIGH, WINDOW, WINDOW_BITS};
use crate::hits::{Best, Hit};

/// A document under this share of a score cannot reach it: it covers the rounding to f32, and that of sums in other orders.
const SHARE: f64 = 1.0 - 1e-6;
/// The sum of no parts. A part is at least +0, and adding +0 makes this +0: the sign tells a document without terms.
const UNTOUCHED: f64 = -0.0;

/// The tables that scoring reads.
pub struct Query<'a> {
    /// Each document's length code.
    pub lengths: &'a [u8],
    /// Each document's place in the order of ids.
    pub ranks: &'a [[u8; 4]],
    pub norms: &'a [f32; 256],
    /// Term, document, frequency.
    pub high: &'a [[u8; 12]],
}

/// A term of a query, and its blocks and postings that are still ahead.
pub struct TermPostings<'a> {
    pub number: u32,
    pub weight: f32,
    pub blocks: &'a [[u8; Block::BYTES]],
    pub postings: &'a [[u8; 2]],
}

/// A term in one window.
struct Part<'a> {
    number: u32,
    weight: f32,
    postings: &'a [[u8; 2]],
    /// No document gets more from this term.
    bound: f32,
    /// No document gets more from this term and those after it.
    rest: f64,
}

/// The sums of a window, and the documents that have one.
struct Sums {
    scores: [f64; WINDOW],
    touched: [u16; WINDOW + 1],
    count: usize,
}

impl Query<'_> {
    /// Returns the `top` best documents, best first.
    pub fn best(&self, mut terms: Vec<TermPostings<'_>>, top: usize) -> Result<Vec<Hit>> {
        let mut best = Best::new(top);
        let mut sums = Sums { scores: [UNTOUCHED; WINDOW], touched: [0; WINDOW + 1], count: 0 };
        let mut parts = Vec::with_capacity(terms.len());
        while let Some(window) = terms.iter().filter_map(TermPostings::window).min() {
            parts.clear();
            for term in &mut terms {
                parts.extend(term.take(window)?);
            }
            let mut rest = 0.0;
            for part in parts.iter_mut().rev() {
                rest += f64::from(part.bound);
                part.rest = rest;
            }
            self.window(window, &parts, &mut sums, &mut best)?;
        }
        Ok(best.into_sorted())
    }

    /// Scores one window.
    fn window(&self, window: u32, parts: &[Part<'_>], sums: &mut Sums, best: &mut Best) -> Result<()> {
        let least = f64::from(best.threshold()) * SHARE;
        let needed = parts.iter().position(|part| part.rest < least).unwrap_or(parts.len());
        let (needed, light) = parts.split_at(needed);
        if needed.is_empty() {
            return Ok(());
        }
        let first = (window as usize) << WINDOW_BITS;
        let lengths = self.lengths.get(first..).with_context(|| format!("window {window} {DAMAGED}"))?;
        let lengths = &lengths[..lengths.len().min(WINDOW)];
        for term in needed {
            for &posting in term.postings {
                let (place, part) = self.part(term, u16::from_le_bytes(posting), first, lengths)?;
                sums.add(place, part);
            }
        }
        for term in light {
            sums.keep(least - term.rest);
            self.add_to_kept(term, first, lengths, sums)?;
        }
        sums.keep(least);
        for (place, score) in sums.drain() {
            let document = first + place;
            let rank = self.ranks.get(document).with_context(|| format!("rank {document} {DAMAGED}"))?;
            best.push(Hit { document: document as u32, score: score as f32 }, u32::from_le_bytes(*rank));
        }
        Ok(())
    }

    /// Adds a term to the documents that are left.
    fn add_to_kept(&self, term: &Part<'_>, first: usize, lengths: &[u8], sums: &mut Sums) -> Result<()> {
        // A walk over all postings costs less than many searches among them.
        if sums.count > term.postings.len() / 8 {
            for &posting in term.postings {
                let posting = u16::from_le_bytes(posting);
                if sums.has(posting >> 4) {
                    let (place, part) = self.part(term, posting, first, lengths)?;
                    sums.scores[place] += f64::from(part);
                }
            }
            return Ok(());
        }
        for &place in &sums.touched[..sums.count] {
            let after = term.postings.partition_point(|&posting| u16::from_le_bytes(posting) >> 4 < place);
            let posting = term.postings.get(after).map(|&posting| u16::from_le_bytes(posting));
            if let Some(posting) = posting.filter(|posting| posting >> 4 == place) {
                let (place, part) = self.part(term, posting, first, lengths)?;
                sums.scores[place] += f64::from(part);
            }
        }
        Ok(())
    }

    /// Returns a posting's place in its window, and what it adds to the document's score.
    #[inline]
    fn part(&self, term: &Part<'_>, posting: u16, first: usize, lengths: &[u8]) -> Result<(usize, f32)> {
        let place = usize::from(posting >> 4);
        let frequency = match u32::from(posting) % HIGH {
            0 => self.high_frequency(term.number, first + place)?,
            low => low,
        };
        let Some(&length) = lengths.get(place) else { return Err(damaged(first + place)) };
        Ok((place, part(term.weight, frequency as f32 * self.norms[usize::from(length)])))
    }

    #[cold]
    fn high_frequency(&self, term: u32, document: usize) -> Result<u32> {
        let fields = |entry: &[u8; 12]| {
            let [a, b, c, d, e, f, g, h, frequency @ ..] = *entry;
            let key = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]) as usize);
            (key, u32::from_le_bytes(frequency))
        };
        let at = self.high.binary_search_by_key(&(term, document), |entry| fields(entry).0);
        at.ok().map(|at| fields(&self.high[at]).1).ok_or_else(|| damaged(document))
    }
}

impl<'a> TermPostings<'a> {
    fn window(&self) -> Option<u32> {
        self.blocks.first().map(|block| Block::read(block).window)
    }

    /// Takes the block of `window`, which no block ahead precedes; none if the term is not in that window.
    fn take(&mut self, window: u32) -> Result<Option<Part<'a>>> {
        let Some((first, rest)) = self.blocks.split_first() else { return Ok(None) };
        let block = Block::read(first);
        if block.window != window {
            return Ok(None);
        }
        let next = rest.first().map(|next| Block::read(next).window);
        ensure!(next.is_none_or(|next| next > window), "window {window} {DAMAGED}");
        let halves = self.postings.split_at_checked(usize::from(block.count));
        let (postings, after) = halves.with_context(|| format!("window {window} {DAMAGED}"))?;
        (self.blocks, self.postings) = (rest, after);
        let bound = part(self.weight, block.greatest_saturation());
        Ok(Some(Part { number: self.number, weight: self.weight, postings, bound, rest: 0.0 }))
    }
}

impl Sums {
    #[inline]
    fn add(&mut self, place: usize, part: f32) {
        let score = &mut self.scores[place % WINDOW];
        // Written in any case: a branch would be guessed wrong too often.
        self.touched[self.count] = place as u16;
        self.count += usize::from(score.is_sign_negative());
        *score += f64::from(part);
    }

    fn has(&self, place: u16) -> bool {
        self.scores[usize::from(place) % WINDOW].is_sign_positive()
    }

    /// Forgets the documents whose sum is under `least`.
    fn keep(&mut self, least: f64) {
        let mut kept = 0;
        for at in 0..self.count {
            let place = self.touched[at];
            let score = &mut self.scores[usize::from(place) % WINDOW];
            self.touched[kept] = place;
            let stays = *score >= least;
            kept += usize::from(stays);
            *score = if stays { *score } else { UNTOUCHED };
        }
        self.count = kept;
    }

    /// Returns the places and sums that are left, and empties the window.
    fn drain(&mut self) -> impl Iterator<Item = (usize, f64)> {
        let count = std::mem::take(&mut self.count);
        let Self { scores, touched, .. } = self;
        touched[..count].iter().map(|&place| {
            let place = usize::from(place) % WINDOW;
            (place, std::mem::replace(&mut scores[place], UNTOUCHED))
        })
    }
}

#[cold]
fn damaged(document: usize) -> anyhow::Error {
    anyhow::anyhow!("document {document} {DAMAGED}")
}
