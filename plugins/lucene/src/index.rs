//! An index that is open.

use std::path::Path;

use anyhow::{Context, Result};
use nestor_plugin::mapped::Mapped;

use crate::analysis::Analyzer;
use crate::bm25;
use crate::bytes::Bytes;
use crate::format::{Block, DAMAGED, Header, Section, Term};
use crate::hits::{Hit, adjust_ties};
use crate::search::{Query, TermPostings};

/// Lucene refuses a query with more different terms.
const MOST_TERMS: usize = 1024;

/// A search index over numbered documents. Any number of threads can search it at the same time.
pub struct Index {
    bytes: Bytes,
    header: Header,
    norms: [f32; 256],
}

impl Index {
    /// Opens an index in memory, from the bytes that [`crate::Builder::finish`] returned.
    ///
    /// # Errors
    /// Bytes that are no index, an older or newer one, or cut.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::new(Bytes::Owned(bytes)).context("build the search index again")
    }

    /// Maps the index of a file into memory. The file must stay as it is while it is open.
    ///
    /// # Errors
    /// A file that cannot be read, is no index, is an older or newer one, or is cut.
    pub fn open(path: &Path) -> Result<Self> {
        let index = Mapped::open(path).and_then(|bytes| Self::new(Bytes::Mapped(bytes)));
        index.with_context(|| format!("{}: no search index to use; build it again", path.display()))
    }

    fn new(bytes: Bytes) -> Result<Self> {
        let header = Header::read(&bytes)?;
        let norms = bm25::inverse_norms(header.tokens, header.filled);
        Ok(Self { bytes, header, norms })
    }

    /// Number of documents, with those that have no terms.
    pub fn documents(&self) -> u32 {
        self.header.documents
    }

    /// Returns the `top` best documents for `query`, best first. Scores are those that Anserini prints.
    ///
    /// A query without a term of the index finds nothing, and so does one with more than 1,024 different terms.
    ///
    /// # Errors
    /// An index whose bytes are damaged.
    pub fn search(&self, query: &str, top: usize) -> Result<Vec<Hit>> {
        let mut words = Vec::new();
        Analyzer::default().analyze(query, |term| words.push(term.to_owned()));
        words.sort_unstable();
        let words: Vec<&[String]> = words.chunk_by(|a, b| a == b).collect();
        if words.len() > MOST_TERMS || top == 0 {
            return Ok(Vec::new());
        }
        let mut terms = Vec::with_capacity(words.len());
        for same in words {
            terms.extend(self.term(&same[0], same.len() as u32)?);
        }
        // The order of adding up decides about the last bit, so the heaviest is first whatever the query's order is.
        terms.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let query = Query {
            lengths: self.section(Section::Lengths),
            ranks: self.section(Section::Ranks).as_chunks().0,
            norms: &self.norms,
            high: self.section(Section::High).as_chunks().0,
        };
        let mut hits = query.best(terms, top.min(self.header.documents as usize))?;
        adjust_ties(&mut hits);
        Ok(hits)
    }

    fn section(&self, section: Section) -> &[u8] {
        self.header.section(&self.bytes, section)
    }

    /// Finds a term; none if no document has it.
    fn term(&self, word: &str, count: u32) -> Result<Option<TermPostings<'_>>> {
        let words = self.section(Section::Words);
        let (terms, _) = self.section(Section::Terms).as_chunks::<{ Term::BYTES }>();
        let at = |place: usize| -> Option<(Term, Term, &[u8])> {
            let (term, next) = (Term::read(terms.get(place)?), Term::read(terms.get(place + 1)?));
            Some((term, next, words.get(term.word as usize..next.word as usize)?))
        };
        let (mut low, mut high) = (0, terms.len().saturating_sub(1));
        while low < high {
            let middle = low.midpoint(high);
            let (term, next, found) = at(middle).with_context(|| format!("term {middle} {DAMAGED}"))?;
            match found.cmp(word.as_bytes()) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => {
                    let postings = self.postings(middle as u32, term, next, count);
                    return postings.with_context(|| format!("term `{word}` {DAMAGED}")).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn postings(&self, number: u32, term: Term, next: Term, count: u32) -> Option<TermPostings<'_>> {
        let (blocks, _) = self.section(Section::Blocks).as_chunks::<{ Block::BYTES }>();
        let (postings, _) = self.section(Section::Postings).as_chunks::<2>();
        let postings = postings.get(usize::try_from(term.posting).ok()?..usize::try_from(next.posting).ok()?)?;
        let documents = u32::try_from(postings.len()).ok().filter(|&documents| documents <= self.header.filled)?;
        Some(TermPostings {
            number,
            weight: bm25::weight(count, documents, self.header.filled),
            blocks: blocks.get(term.block as usize..next.block as usize)?,
            postings,
        })
    }
}
