//! Builds an index from texts.

use std::collections::HashMap;

use anyhow::{Context, Result};

use crate::analysis::Analyzer;
use crate::bm25;
use crate::format::{Block, HIGH, Header, Term, WINDOW, WINDOW_BITS};

/// Takes documents, numbered from 0, and writes the index over them.
#[derive(Default)]
pub struct Builder {
    analyzer: Analyzer,
    numbers: HashMap<Box<str>, u32>,
    terms: Vec<Postings>,
    ids: Vec<Box<str>>,
    lengths: Vec<u8>,
    filled: u32,
    tokens: u64,
    /// Term, document, frequency.
    high: Vec<(u32, u32, u32)>,
    /// The terms of the document at hand.
    found: Vec<u32>,
}

/// The documents of one term.
#[derive(Default)]
struct Postings {
    /// Window, and the number of postings in it.
    blocks: Vec<(u32, u16)>,
    postings: Vec<u16>,
}

impl Builder {
    /// Returns a builder without documents.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next document. The order of ids decides between documents of the same score.
    pub fn add(&mut self, id: &str, contents: &str) {
        // `finish` refuses more documents than a u32 numbers.
        let document = self.ids.len() as u32;
        self.found.clear();
        self.analyzer.analyze(contents, |term| {
            let number = match self.numbers.get(term) {
                Some(&number) => number,
                None => {
                    let number = self.terms.len() as u32;
                    self.numbers.insert(term.into(), number);
                    self.terms.push(Postings::default());
                    number
                }
            };
            self.found.push(number);
        });
        let length = self.found.len();
        self.ids.push(id.into());
        self.lengths.push(bm25::encode(length as u32));
        self.filled += u32::from(length > 0);
        self.tokens += length as u64;
        self.found.sort_unstable();
        for same in self.found.chunk_by(|a, b| a == b) {
            let frequency = same.len() as u32;
            self.terms[same[0] as usize].push(document, frequency);
            if frequency >= HIGH {
                self.high.push((same[0], document, frequency));
            }
        }
    }

    /// Returns the bytes of the index, for [`crate::Index::from_bytes`] or a file.
    ///
    /// # Errors
    /// More documents, blocks or bytes of terms than the format numbers.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        let documents = u32::try_from(self.ids.len()).context("a search index holds up to 4,294,967,295 documents")?;
        let ranks = ranks(&self.ids)?;
        drop(self.ids);
        let mut order: Vec<(Box<str>, u32)> = self.numbers.into_iter().collect();
        order.sort_unstable();

        let frequencies: HashMap<(u32, u32), u32> = self.high.iter().map(|&(t, d, f)| ((t, d), f)).collect();
        let norms = bm25::inverse_norms(self.tokens, self.filled);
        let (mut words, mut terms, mut blocks, mut postings, mut high) = (vec![], vec![], vec![], vec![], vec![]);
        for (place, (word, number)) in order.iter().enumerate() {
            term_starts(&words, &blocks, &postings)?.write(&mut terms);
            words.extend_from_slice(word.as_bytes());
            let term = std::mem::take(&mut self.terms[*number as usize]);
            let mut rest = term.postings.as_slice();
            for (window, count) in term.blocks {
                let (block, after) = rest.split_at(usize::from(count));
                rest = after;
                let mut peak = 0.0f32;
                for &posting in block {
                    let document = (window << WINDOW_BITS) + u32::from(posting >> 4);
                    let frequency = match u32::from(posting) % HIGH {
                        0 => {
                            let frequency = frequencies.get(&(*number, document)).copied().unwrap_or(HIGH);
                            high.extend([place as u32, document, frequency].into_iter().flat_map(u32::to_le_bytes));
                            frequency
                        }
                        low => low,
                    };
                    let norm = norms[usize::from(self.lengths[document as usize])];
                    peak = peak.max(frequency as f32 * norm);
                    postings.extend(posting.to_le_bytes());
                }
                Block { window, count, peak: Block::round_up(peak) }.write(&mut blocks);
            }
        }
        term_starts(&words, &blocks, &postings)?.write(&mut terms);
        let sections = [&self.lengths, &ranks, &words, &terms, &blocks, &postings, &high];
        Ok(Header::write(documents, self.filled, self.tokens, sections.map(Vec::as_slice)))
    }
}

impl Postings {
    fn push(&mut self, document: u32, frequency: u32) {
        let window = document >> WINDOW_BITS;
        match self.blocks.last_mut() {
            Some((last, count)) if *last == window => *count += 1,
            _ => self.blocks.push((window, 1)),
        }
        let low = if frequency < HIGH { frequency as u16 } else { 0 };
        self.postings.push(((document as usize % WINDOW) as u16) << 4 | low);
    }
}

/// Returns the place of each document in the order of ids, as bytes.
fn ranks(ids: &[Box<str>]) -> Result<Vec<u8>> {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|&document| &ids[document as usize]);
    let mut ranks = vec![0; 4 * ids.len()];
    for (rank, document) in order.into_iter().enumerate() {
        let at = 4 * document as usize;
        ranks[at..at + 4].copy_from_slice(&u32::try_from(rank)?.to_le_bytes());
    }
    Ok(ranks)
}

fn term_starts(words: &[u8], blocks: &[u8], postings: &[u8]) -> Result<Term> {
    Ok(Term {
        word: u32::try_from(words.len()).context("a search index holds up to 4 GiB of terms")?,
        block: u32::try_from(blocks.len() / Block::BYTES).context("a search index holds up to 4,294,967,295 blocks")?,
        posting: postings.len() as u64 / 2,
    })
}
