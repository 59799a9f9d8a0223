//! A catalogue as a folder of files that ranks map into memory: `products.bin`, `search.bin` and `index.json`, which names
//! the files that the index was made of.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nestor_lucene::Bytes;
use nestor_lucene::folder::{About, Folder, Source, Sum, Summed};
use nestor_plugin::mapped::Mapped;
use serde::{Deserialize, Serialize};

use super::Catalogue;
use super::load::{Files, Loader};
use super::store::Store;

const PRODUCTS: &str = "products.bin";
const SEARCH: &str = "search.bin";

/// The description of an index.
#[derive(Debug, Deserialize, Serialize)]
struct Contents {
    /// The files that it was made of, in the order of [`Files::all`].
    sources: Vec<Source>,
    products: Sum,
    search: Sum,
    #[serde(flatten)]
    counts: Built,
}

fn folder(path: &Path) -> Folder<'_> {
    Folder {
        path,
        files: &[PRODUCTS, SEARCH],
        // Version 1 had no checksums.
        version: 2,
        remedy: "make the index again with `nestor-webshop index`",
        elsewhere: "by `--index`",
    }
}

/// The place of an index beside its files, unless another is given.
pub fn beside(data: &Path, files: &Files) -> PathBuf {
    let small = files.items.file_stem().is_some_and(|name| name == "items_shuffle_1000");
    data.join(if small { "nestor_index_1000" } else { "nestor_index" })
}

/// Numbers of a built index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub struct Built {
    /// Number of products.
    pub product_count: u32,
    /// Number of synthetic goals.
    pub synthetic_goals: u64,
    /// Number of goals of people.
    pub human_goals: u64,
}

/// Makes an index. `progress` learns how many bytes of the products were read.
pub fn build(files: &Files, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Built> {
    let folder = folder(path);
    folder.make_room();
    let _lock = folder.exclusive(folder.shared()?)?;
    let mut counts = None;
    folder.write(|partial| {
        let contents = make(files, partial, progress)?;
        counts = Some(contents.counts);
        Ok(contents)
    })?;
    counts.context("no index was made")
}

fn make(files: &Files, partial: &Path, progress: &mut dyn FnMut(u64)) -> Result<Contents> {
    let sources = files.all().map(Source::of).into_iter().collect::<Result<_>>()?;
    let mut loader = Loader::new(BufWriter::with_capacity(1 << 20, Summed::create(&partial.join(PRODUCTS))?));
    files.read(&mut loader, progress)?;
    let (products, bytes) = loader.finish().with_context(|| files.items.display().to_string())?;
    let products = products.into_inner().map_err(|error| error.into_error()).context(PRODUCTS)?;
    let mut search = Summed::create(&partial.join(SEARCH))?;
    search.write_all(&bytes).context(SEARCH)?;
    let (products, search) = (products.finish().context(PRODUCTS)?, search.finish().context(SEARCH)?);
    let store = Store::new(Bytes::Mapped(Mapped::open(&partial.join(PRODUCTS))?))?;
    Ok(Contents { sources, products, search, counts: Built::of(&store) })
}

/// Maps an index. It must belong to the files.
pub fn open(path: &Path, files: &Files) -> Result<Catalogue> {
    let folder = folder(path);
    ensure!(folder.exists(), "{}: No such file or directory", folder.damaged());
    let _lock = folder.shared()?;
    let about: Contents = match folder.about()? {
        About::Missing => bail!("{}: it has no index.json", folder.damaged()),
        About::Other(found) => {
            bail!("{}: the index has version {found}, this program {}", folder.damaged(), folder.version)
        }
        About::Own(about) => about,
    };
    ensure!(about.sources.len() == files.all().len(), "{}: index.json names other files", folder.damaged());
    for (path, source) in files.all().iter().zip(&about.sources) {
        let same = source.is(path).with_context(|| folder.damaged())?;
        let path = path.display();
        ensure!(same, "{}: {path}: the file is not the one that the index was made of", folder.damaged());
    }
    let products = folder.map(PRODUCTS, about.products)?;
    let store = Store::new(Bytes::Mapped(products)).with_context(|| format!("{}: {PRODUCTS}", folder.damaged()))?;
    folder.map(SEARCH, about.search)?;
    let search = nestor_lucene::Index::open(&path.join(SEARCH)).with_context(|| folder.damaged())?;
    let whole = Built::of(&store) == about.counts && search.documents() == about.counts.product_count;
    ensure!(whole, "{}: its files are of different indexes", folder.damaged());
    Ok(Catalogue { store, search, prices: None })
}

impl Built {
    fn of(store: &Store) -> Self {
        Self { product_count: store.products(), synthetic_goals: store.goals(false), human_goals: store.goals(true) }
    }
}
