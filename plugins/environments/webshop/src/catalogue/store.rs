//! Products and lists of goals as bytes, in memory or in a file that all ranks map:
//!
//! ```text
//! records | offsets (n + 1) | by_asin (n) | synthetic (m) | human (h) | trailer
//! ```
//!
//! A record is a [`Product`] in postcard's format. Offsets are 8 bytes, product numbers 4, goals two numbers of 4 (product
//! and which of its goals); all are little-endian. The trailer has the places of the sections, and comes last, so that a
//! cut file has none.

use std::io::Write;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use nestor_lucene::Bytes;

use crate::product::{Card, Product};

/// A goal of the store: the product's number, and the number of the goal among those of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoalId {
    /// Number of the product.
    pub product: u32,
    /// A combination of option values, or an instruction that a person wrote.
    pub which: u32,
}

const MAGIC: [u8; 8] = *b"nestorws";
/// Another version has another layout, or other rules by which goals are ordered.
const VERSION: u64 = 1;
/// Magic, version, and the ends of the five sections.
const TRAILER: usize = 8 + 8 + 5 * 8;

/// Writes a store record by record, so that a large catalogue need not be in memory.
pub struct StoreWriter<W: Write> {
    out: W,
    offsets: Vec<u64>,
    asins: Vec<String>,
    buffer: Vec<u8>,
}

impl<W: Write> StoreWriter<W> {
    /// Starts a store.
    pub fn new(out: W) -> Self {
        StoreWriter { out, offsets: vec![0], asins: Vec::new(), buffer: Vec::new() }
    }

    /// Number of products so far.
    pub fn products(&self) -> u32 {
        self.asins.len() as u32
    }

    /// Adds a product.
    pub fn add(&mut self, product: &Product<'_>) -> Result<()> {
        ensure!(self.asins.len() < u32::MAX as usize, "a catalogue has at most {} products", u32::MAX);
        self.buffer.clear();
        self.buffer = postcard::to_extend(product, std::mem::take(&mut self.buffer))?;
        self.out.write_all(&self.buffer)?;
        self.offsets.push(self.offsets[self.asins.len()] + self.buffer.len() as u64);
        self.asins.push(product.card.asin.to_owned());
        Ok(())
    }

    /// Writes the goals and the trailer.
    pub fn finish(mut self, synthetic: &[GoalId], human: &[GoalId]) -> Result<W> {
        let mut by_asin: Vec<u32> = (0..self.products()).collect();
        by_asin.sort_unstable_by_key(|&number| &self.asins[number as usize]);
        let mut end = self.offsets[self.asins.len()];
        let mut ends = vec![end];
        for offset in &self.offsets {
            self.out.write_all(&offset.to_le_bytes())?;
        }
        end += 8 * self.offsets.len() as u64;
        ends.push(end);
        for number in &by_asin {
            self.out.write_all(&number.to_le_bytes())?;
        }
        end += 4 * by_asin.len() as u64;
        ends.push(end);
        for goals in [synthetic, human] {
            for goal in goals {
                self.out.write_all(&goal.product.to_le_bytes())?;
                self.out.write_all(&goal.which.to_le_bytes())?;
            }
            end += 8 * goals.len() as u64;
            ends.push(end);
        }
        for end in ends {
            self.out.write_all(&end.to_le_bytes())?;
        }
        self.out.write_all(&VERSION.to_le_bytes())?;
        self.out.write_all(&MAGIC)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The products and goals of a catalogue.
pub struct Store {
    bytes: Bytes,
    offsets: Range<usize>,
    by_asin: Range<usize>,
    synthetic: Range<usize>,
    human: Range<usize>,
}

impl Store {
    /// Reads the trailer. Records are checked when they are read.
    pub fn new(bytes: Bytes) -> Result<Store> {
        let trailer = bytes.len().checked_sub(TRAILER).context("it is cut")?;
        let word = |at: usize| u64_at(&bytes, trailer + 8 * at);
        ensure!(bytes[bytes.len() - 8..] == MAGIC, "it is cut, or another kind of file");
        let version = word(5)?;
        ensure!(version == VERSION, "it has version {version} and this program reads version {VERSION}");
        let mut ends = [0; 5];
        for (at, end) in ends.iter_mut().enumerate() {
            *end = usize::try_from(word(at)?)?;
        }
        ensure!(ends.is_sorted() && ends[4] == trailer, "its table of sections is damaged");
        let store = Store {
            offsets: ends[0]..ends[1],
            by_asin: ends[1]..ends[2],
            synthetic: ends[2]..ends[3],
            human: ends[3]..ends[4],
            bytes,
        };
        let products = store.by_asin.len() / 4;
        ensure!(store.offsets.len() == 8 * (products + 1), "its table of sections is damaged");
        Ok(store)
    }

    /// Number of products.
    pub fn products(&self) -> u32 {
        (self.by_asin.len() / 4) as u32
    }

    /// The bytes of a product's record.
    fn record(&self, number: u32) -> Result<&[u8]> {
        ensure!(number < self.products(), "the catalogue has no product {number}");
        let at = self.offsets.start + 8 * number as usize;
        let (start, end) = (u64_at(&self.bytes, at)? as usize, u64_at(&self.bytes, at + 8)? as usize);
        self.bytes[..self.offsets.start].get(start..end).context("the catalogue's index is damaged: build it again")
    }

    /// All of a product.
    pub fn product(&self, number: u32) -> Result<Product<'_>> {
        postcard::from_bytes(self.record(number)?).context("the catalogue's index is damaged: build it again")
    }

    /// The part of a product that a page of results shows.
    pub fn card(&self, number: u32) -> Result<Card<'_>> {
        let card = postcard::take_from_bytes(self.record(number)?);
        Ok(card.context("the catalogue's index is damaged: build it again")?.0)
    }

    /// The number of the product with this ASIN.
    pub fn find(&self, asin: &str) -> Result<Option<u32>> {
        let (mut low, mut high) = (0, self.products() as usize);
        while low < high {
            let middle = usize::midpoint(low, high);
            let number = u32_at(&self.bytes, self.by_asin.start + 4 * middle)?;
            match self.card(number)?.asin.cmp(asin) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(Some(number)),
            }
        }
        Ok(None)
    }

    /// Number of goals, from people or synthetic.
    pub fn goals(&self, human: bool) -> u64 {
        let section = if human { &self.human } else { &self.synthetic };
        section.len() as u64 / 8
    }

    /// A goal by its place in the order of the catalogue.
    pub fn goal(&self, human: bool, index: u64) -> Result<GoalId> {
        if index >= self.goals(human) {
            bail!("the catalogue has {} goals, so there is no goal {index}", self.goals(human));
        }
        let section = if human { &self.human } else { &self.synthetic };
        let at = section.start + 8 * index as usize;
        Ok(GoalId { product: u32_at(&self.bytes, at)?, which: u32_at(&self.bytes, at + 4)? })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    Ok(u64::from_le_bytes(*word.context("the catalogue's index is cut")?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    Ok(u32::from_le_bytes(*word.context("the catalogue's index is cut")?))
}
