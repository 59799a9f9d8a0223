//! A catalogue as a folder of files that ranks map into memory: `products.bin`, `search.bin` and `index.json`, which names
//! the files that the index was made of.

use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail, ensure};
use nestor_lucene::Bytes;
use nestor_plugin::files;
use nestor_plugin::mapped::Mapped;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Catalogue;
use super::load::{Files, Loader, whole};
use super::store::Store;

const PRODUCTS: &str = "products.bin";
const SEARCH: &str = "search.bin";
const ABOUT: &str = "index.json";
/// Another version has other rules by which texts are read or goals are made.
const VERSION: u32 = 1;

/// The contents of `index.json`.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
struct About {
    version: u32,
    /// The files that it was made of.
    sources: Vec<Source>,
    products: u32,
    synthetic_goals: u64,
    human_goals: u64,
}

/// A file that an index was made of.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
struct Source {
    name: String,
    bytes: u64,
    /// Seconds and nanoseconds of its last change.
    modified: (u64, u32),
    sha256: String,
}

/// The place of an index beside its files, unless another is given.
pub fn beside(data: &Path, files: &Files) -> PathBuf {
    let small = files.items.file_stem().is_some_and(|name| name == "items_shuffle_1000");
    data.join(if small { "nestor_index_1000" } else { "nestor_index" })
}

/// Numbers of a built index.
pub struct Built {
    /// Number of products.
    pub products: u32,
    /// Number of synthetic goals.
    pub synthetic_goals: u64,
    /// Number of goals of people.
    pub human_goals: u64,
}

/// Refuses a folder with other things than an index, which would be lost.
fn replaceable(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        let ours = [PRODUCTS, SEARCH, ABOUT].iter().any(|name| path == folder.join(name));
        ensure!(ours, "{} is no part of an index: give a folder of its own for the index", path.display());
    }
    Ok(())
}

/// Makes an index. `progress` learns how many bytes of the products were read.
pub fn build(files: &Files, folder: &Path, progress: &mut dyn FnMut(u64)) -> Result<Built> {
    let place = || folder.display().to_string();
    let mut partial = folder.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    replaceable(folder)?;
    replaceable(&partial)?;
    if partial.exists() {
        std::fs::remove_dir_all(&partial).with_context(|| partial.display().to_string())?;
    }
    std::fs::create_dir_all(&partial).with_context(|| partial.display().to_string())?;
    let sources = files.all().map(Source::new).into_iter().collect::<Result<Vec<_>>>()?;
    let out = File::create(partial.join(PRODUCTS)).with_context(place)?;
    let mut loader = Loader::new(BufWriter::with_capacity(1 << 20, out));
    files.read(&mut loader, progress)?;
    let (out, search) = loader.finish().with_context(|| files.items.display().to_string())?;
    out.into_inner().with_context(place)?.sync_all().with_context(place)?;
    std::fs::write(partial.join(SEARCH), search).with_context(place)?;
    let store = Store::new(Bytes::Mapped(Mapped::open(&partial.join(PRODUCTS))?))?;
    let built =
        Built { products: store.products(), synthetic_goals: store.goals(false), human_goals: store.goals(true) };
    let about = About {
        version: VERSION,
        sources,
        products: built.products,
        synthetic_goals: built.synthetic_goals,
        human_goals: built.human_goals,
    };
    std::fs::write(partial.join(ABOUT), serde_json::to_string_pretty(&about)?).with_context(place)?;
    // The new index takes the place of an old one at the end, so that a reader finds one of them whole.
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(place)?;
    }
    std::fs::rename(&partial, folder).with_context(place)?;
    Ok(built)
}

/// Maps an index. It must belong to the files.
pub fn open(folder: &Path, files: &Files) -> Result<Catalogue> {
    let remedy = || format!("{}: make the index again with `nestor-webshop index`", folder.display());
    let about: About = whole(&folder.join(ABOUT)).with_context(remedy)?;
    if about.version != VERSION {
        let (found, ours) = (about.version, VERSION);
        bail!("{}: the index has version {found}, this program {ours}", remedy());
    }
    for (path, source) in files.all().iter().zip(&about.sources) {
        source.check(path).with_context(remedy)?;
    }
    ensure!(about.sources.len() == files.all().len(), "{}: index.json names other files", remedy());
    let products = Mapped::open(&folder.join(PRODUCTS)).with_context(remedy)?;
    let store = Store::new(Bytes::Mapped(products)).with_context(|| format!("{}: {PRODUCTS}", remedy()))?;
    let search = nestor_lucene::Index::open(&folder.join(SEARCH)).with_context(remedy)?;
    let counts = (store.products(), store.goals(false), store.goals(true), search.documents());
    let expected = (about.products, about.synthetic_goals, about.human_goals, about.products);
    ensure!(counts == expected, "{}: its files are of different indexes", remedy());
    Ok(Catalogue { store, search, prices: None })
}

impl Source {
    fn new(path: &Path) -> Result<Source> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (bytes, modified) = Self::size_and_time(path)?;
        Ok(Source { name, bytes, modified, sha256: sha256(path)? })
    }

    fn size_and_time(path: &Path) -> Result<(u64, (u64, u32))> {
        let about = std::fs::metadata(path).with_context(|| path.display().to_string())?;
        let time = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok((about.len(), (time.as_secs(), time.subsec_nanos())))
    }

    /// Compares size and time of change. A file of another time, such as a copy, is read to compare its SHA-256.
    fn check(&self, path: &Path) -> Result<()> {
        let (bytes, modified) = Self::size_and_time(path)?;
        let same = bytes == self.bytes && (modified == self.modified || sha256(path)? == self.sha256);
        ensure!(same, "{}: the file is not the one that the index was made of", path.display());
        Ok(())
    }
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = files::open(path).with_context(|| path.display().to_string())?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).with_context(|| path.display().to_string())? {
            0 => break,
            count => digest.update(&buffer[..count]),
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
