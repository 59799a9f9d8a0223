//! Reads the files of a catalogue, item by item, into a store and a search index.

use std::collections::HashSet;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nestor_plugin::files::{self, LARGE};
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::convert::{Made, contents, counts};
use super::store::{GoalId, StoreWriter};
use crate::draw;
use crate::files::{HumanInstruction, HumanInstructions, Instruction, Instructions, Item};
use crate::goal::own;

/// The three files of a catalogue.
#[derive(Debug, Clone)]
pub struct Files {
    /// The products.
    pub items: PathBuf,
    /// Attributes and synthetic instructions.
    pub instructions: PathBuf,
    /// Instructions that people wrote.
    pub human: PathBuf,
}

impl Files {
    /// Finds the files of 1,000 products in a folder, or else those of all products. With `full` the latter alone.
    pub fn find(folder: &Path, full: bool) -> Result<Files> {
        ensure!(folder.is_dir(), "{}: there is no such folder: give the one with the shop's files", folder.display());
        let human = folder.join("items_human_ins.json");
        for end in if full { &[""] as &[&str] } else { &["_1000", ""] } {
            let items = folder.join(format!("items_shuffle{end}.json"));
            let instructions = folder.join(format!("items_ins_v2{end}.json"));
            if items.exists() {
                for file in [&instructions, &human] {
                    ensure!(file.exists(), "{}: the file is missing beside {}", file.display(), items.display());
                }
                return Ok(Files { items, instructions, human });
            }
        }
        let small = if full { "" } else { "items_shuffle_1000.json or " };
        anyhow::bail!("{}: the folder has no {small}items_shuffle.json", folder.display())
    }

    /// All three.
    pub fn all(&self) -> [&Path; 3] {
        [&self.items, &self.instructions, &self.human]
    }

    /// Reads the files. `progress` learns how many bytes of the products were read.
    pub fn read<W: Write>(&self, loader: &mut Loader<W>, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let instructions: Instructions = whole(&self.instructions)?;
        let human: HumanInstructions = whole(&self.human)?;
        let none: &[HumanInstruction] = &[];
        let file = files::open(&self.items).with_context(|| self.items.display().to_string())?;
        let counted = Counted { inner: file, progress };
        let mut failed = None;
        let mut number = 0_u64;
        let mut each = |item: Item| {
            let people = human.get(&item.asin).map_or(none, Vec::as_slice);
            let added = loader.add(&item, instructions.get(&item.asin), people);
            let place = || format!("{}: product {number} ({:?})", self.items.display(), item.asin);
            failed = added.with_context(place).err();
            number += 1;
            failed.is_none()
        };
        let mut reader = BufReader::with_capacity(1 << 20, counted);
        refuse_mark(reader.fill_buf().with_context(|| self.items.display().to_string())?, &self.items)?;
        let mut json = serde_json::Deserializer::from_reader(PythonNumbers::new(reader));
        let read = Each(&mut each).deserialize(&mut json).and_then(|()| json.end());
        match failed {
            Some(error) => Err(error),
            None => read.with_context(|| self.items.display().to_string()),
        }
    }
}

/// Reads all of a JSON file.
pub fn whole<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = files::read(path, LARGE).with_context(|| path.display().to_string())?;
    refuse_mark(&text, path)?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// Some editors of Windows put a mark before the text, which JSON does not have.
fn refuse_mark(text: &[u8], path: &Path) -> Result<()> {
    let marked = [&b"\xef\xbb\xbf"[..], b"\xff\xfe", b"\xfe\xff"].iter().any(|mark| text.starts_with(mark));
    ensure!(!marked, "{}: the file starts with a byte order mark: save it as UTF-8 without one", path.display());
    Ok(())
}

/// Takes items, and makes of them the store, the search index, and the lists of goals.
pub struct Loader<W: Write> {
    store: StoreWriter<W>,
    search: nestor_lucene::Builder,
    seen: HashSet<String>,
    synthetic: Vec<(u64, GoalId)>,
    human: Vec<(u64, GoalId)>,
}

impl<W: Write> Loader<W> {
    /// Starts a catalogue.
    pub fn new(out: W) -> Self {
        Loader {
            store: StoreWriter::new(out),
            search: nestor_lucene::Builder::new(),
            seen: HashSet::new(),
            synthetic: Vec::new(),
            human: Vec::new(),
        }
    }

    /// Adds a product, unless its ASIN is invalid or not new.
    pub fn add(&mut self, item: &Item, instruction: Option<&Instruction>, human: &[HumanInstruction]) -> Result<()> {
        if !counts(item) || !self.seen.insert(item.asin.clone()) {
            return Ok(());
        }
        let made = Made::new(item)?;
        let product = made.product(item, instruction, human);
        let number = self.store.products();
        for which in 0..own::synthetic_count(&product)? {
            let values = own::combination(&product, which);
            let mut names = vec![product.card.asin];
            names.extend(values.iter().map(|(_, value)| *value));
            self.synthetic.push((draw::hash("goal", &names), GoalId { product: number, which }));
        }
        for (which, words) in product.human.iter().enumerate() {
            if !words.attributes.is_empty() {
                let order = draw::hash("human goal", &[product.card.asin, words.instruction]);
                self.human.push((order, GoalId { product: number, which: which as u32 }));
            }
        }
        self.store.add(&product)?;
        self.search.add(product.card.asin, &contents(&product));
        Ok(())
    }

    /// Ends the catalogue: what was written, and the search index.
    pub fn finish(self) -> Result<(W, Vec<u8>)> {
        ensure!(self.store.products() > 0, "the catalogue is empty");
        let [synthetic, human] = [self.synthetic, self.human].map(|mut goals| {
            goals.sort_unstable_by_key(|(order, goal)| (*order, goal.product, goal.which));
            goals.into_iter().map(|(_, goal)| goal).collect::<Vec<_>>()
        });
        let out = self.store.finish(&synthetic, &human)?;
        Ok((out, self.search.finish()?))
    }
}

/// Hands each item of a JSON list to a function, until it returns false.
struct Each<'f>(&'f mut dyn FnMut(Item) -> bool);

impl<'de> DeserializeSeed<'de> for Each<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Each<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of products")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut number = 0;
        while let Some(item) = list.next_element_seed(Numbered(number))? {
            number += 1;
            if !(self.0)(item) {
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// An item of a list, by its number.
struct Numbered(u64);

impl<'de> DeserializeSeed<'de> for Numbered {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Item, D::Error> {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            let (field, number) = (error.path().to_string(), self.0);
            match field.as_str() {
                "." => error.into_inner(),
                field => serde::de::Error::custom(format!("product {number}, field `{field}`: {}", error.inner())),
            }
        })
    }
}

/// Reads JSON as Python writes it: `NaN`, `Infinity` and `-Infinity`, which JSON lacks, become 0. The shop reads no number, so
/// they are in fields that do not count.
struct PythonNumbers<R> {
    inner: R,
    /// Inside a text: true after a backslash that escapes the next byte.
    text: Option<bool>,
    /// The bytes still to come of `NaN` or `Infinity`.
    rest: &'static [u8],
}

impl<R: Read> PythonNumbers<R> {
    fn new(inner: R) -> Self {
        Self { inner, text: None, rest: b"" }
    }

    fn byte(&mut self, byte: u8) -> u8 {
        if let Some((&next, rest)) = self.rest.split_first() {
            self.rest = if next == byte { rest } else { b"" };
            return if next == byte { b' ' } else { byte };
        }
        match (self.text, byte) {
            (Some(true), _) => self.text = Some(false),
            (Some(false), b'\\') => self.text = Some(true),
            (Some(false), b'"') => self.text = None,
            (Some(false), _) => {}
            (None, b'"') => self.text = Some(false),
            (None, b'N' | b'I') => {
                self.rest = if byte == b'N' { b"aN" } else { b"nfinity" };
                return b'0';
            }
            (None, _) => {}
        }
        byte
    }
}

impl<R: Read> Read for PythonNumbers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        for byte in &mut buffer[..count] {
            *byte = self.byte(*byte);
        }
        Ok(count)
    }
}

/// Counts the bytes that are read.
struct Counted<'f, R> {
    inner: R,
    progress: &'f mut dyn FnMut(u64),
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        (self.progress)(count as u64);
        Ok(count)
    }
}
