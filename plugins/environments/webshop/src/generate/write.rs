//! The three files of a catalogue.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::{Generated, Generator, Spec};
use crate::files::Item;

/// Writes `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json` into a folder, which it makes. Memory
/// does not grow with the catalogue. `progress` receives the number of products written, after each of them.
///
/// Refuses to replace a file. A file gets its name when it is complete.
pub fn write(folder: &Path, spec: &Spec, mut progress: impl FnMut(u64)) -> Result<()> {
    let generator = Generator::new(spec.clone())?;
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot make the folder", folder.display()))?;
    let [products, instructions, human] = ["items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"];
    for name in [products, instructions, human] {
        let file = folder.join(name);
        let exists = file.try_exists().with_context(|| file.display().to_string())?;
        ensure!(!exists, "{} exists and is not replaced: choose another folder, or remove it", file.display());
    }
    let mut products = Output::new(folder, products, "[", "]")?;
    let mut instructions = Output::new(folder, instructions, "{", "}")?;
    let mut human = Output::new(folder, human, "{", "}")?;

    for (n, product) in (1..).zip(generator.products()) {
        let asin = &product.item.asin;
        products.add(&Line::new(&product))?;
        instructions.add_under(asin, &product.instruction)?;
        if !product.human.is_empty() {
            human.add_under(asin, &product.human)?;
        }
        progress(n);
    }
    [products, instructions, human].into_iter().try_for_each(Output::finish)
}

/// A product with the fields of the file that Nestor does not read, but the original engine does.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    item: &'a Item,
    brand: &'a str,
    images: [String; 1],
    availability_status: &'static str,
}

impl Line<'_> {
    fn new(product: &Generated) -> Line<'_> {
        let images = [format!("https://example.invalid/{}.jpg", product.item.asin)];
        Line { item: &product.item, brand: &product.brand, images, availability_status: "In Stock." }
    }
}

/// A file while it is written, under a name of its own.
struct Output {
    file: BufWriter<File>,
    part: PathBuf,
    whole: PathBuf,
    empty: bool,
    close: &'static str,
}

impl Output {
    fn new(folder: &Path, name: &str, open: &str, close: &'static str) -> Result<Output> {
        let (whole, part) = (folder.join(name), folder.join(format!("{name}.part")));
        let file = File::create(&part).with_context(|| format!("{}: cannot write", part.display()))?;
        let mut output = Output { file: BufWriter::new(file), part, whole, empty: true, close };
        output.put(open.as_bytes())?;
        Ok(output)
    }

    /// Adds an entry of an object.
    fn add_under(&mut self, name: &str, entry: &impl Serialize) -> Result<()> {
        self.begin_entry()?;
        write!(self.file, "\"{name}\": ").with_context(|| self.failed())?;
        serde_json::to_writer(&mut self.file, entry).with_context(|| self.failed())
    }

    /// Adds an entry of a list.
    fn add(&mut self, entry: &impl Serialize) -> Result<()> {
        self.begin_entry()?;
        serde_json::to_writer(&mut self.file, entry).with_context(|| self.failed())
    }

    fn begin_entry(&mut self) -> Result<()> {
        let between: &[u8] = if self.empty { b"\n" } else { b",\n" };
        self.empty = false;
        self.put(between)
    }

    fn finish(mut self) -> Result<()> {
        self.put(format!("\n{}\n", self.close).as_bytes())?;
        self.file.flush().with_context(|| self.failed())?;
        fs::rename(&self.part, &self.whole).with_context(|| format!("{}: cannot rename", self.part.display()))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| self.failed())
    }

    fn failed(&self) -> String {
        format!("{}: cannot write", self.part.display())
    }
}
