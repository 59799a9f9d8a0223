//! The index of a corpus as a folder: `search.bin`, `places.bin`, and `index.json`, which describes the two and the corpus.
//! The first process that needs it makes it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nestor_lucene::Index;
use nestor_lucene::folder::{About, Folder, Source, Sum, Summed};
use serde::{Deserialize, Serialize};

use super::build::build;
use super::corpus::Corpus;

const SEARCH: &str = "search.bin";
const PLACES: &str = "places.bin";

/// The index of a smaller corpus is made within seconds.
const SMALL_MIB: u64 = 64;

/// The description of an index.
#[derive(Debug, Deserialize, Serialize)]
struct Contents {
    corpus: Source,
    passages: u32,
    search: Sum,
    places: Sum,
}

fn folder(path: &Path) -> Folder<'_> {
    Folder {
        path,
        files: &[SEARCH, PLACES],
        version: 1,
        remedy: "remove this folder, and the next start makes the index again",
        elsewhere: "by the key `index`",
    }
}

/// Opens the index in the folder `path`, or makes it.
///
/// # Errors
/// A corpus that cannot be indexed, a damaged index, and faults of the disk.
pub fn open(corpus: &Path, path: &Path, threads: usize) -> Result<(Index, Corpus)> {
    fs::metadata(corpus)
        .with_context(|| format!("{}: cannot read the corpus; correct the key `corpus`", corpus.display()))?;
    let folder = folder(path);
    folder.make_room();
    let lock = folder.shared()?;
    if let Some(whole) = read(corpus, folder)? {
        return Ok(whole);
    }
    let _lock = folder.exclusive(lock)?;
    // Another process may have made it in the meantime.
    if let Some(whole) = read(corpus, folder)? {
        return Ok(whole);
    }
    folder.write(|partial| make(corpus, partial, threads))?;
    let changed = || format!("{}: the corpus changed while its index was made: start again", corpus.display());
    read(corpus, folder)?.with_context(changed)
}

/// Reads the index of `corpus`; none if there is none, or one of another corpus or version.
fn read(corpus: &Path, folder: Folder<'_>) -> Result<Option<(Index, Corpus)>> {
    let About::Own(about) = folder.about::<Contents>()? else { return Ok(None) };
    if !about.corpus.is(corpus)? {
        return Ok(None);
    }
    for (name, sum) in [(SEARCH, about.search), (PLACES, about.places)] {
        folder.map(name, sum)?;
    }
    let index = Index::open(&folder.path.join(SEARCH)).with_context(|| folder.damaged())?;
    let corpus = Corpus::open(corpus, &folder.path.join(PLACES)).with_context(|| folder.damaged())?;
    let counts = [index.documents() as usize, corpus.passages()];
    ensure!(counts == [about.passages as usize; 2], "{}: its files are of different indexes", folder.damaged());
    Ok(Some((index, corpus)))
}

fn make(corpus: &Path, partial: &Path, threads: usize) -> Result<Contents> {
    // Size and time are those before the reading: a change in the meantime makes the index stale.
    let (bytes, modified) = Source::size_and_time(corpus)?;
    if bytes >> 20 > SMALL_MIB {
        // Says why nothing happens for a while.
        eprintln!("making the index of {} ({} MiB), once", corpus.display(), bytes >> 20);
    }
    let (mut search, mut places) = (Summed::create(&partial.join(SEARCH))?, Summed::create(&partial.join(PLACES))?);
    let indexed = build(corpus, threads, partial, &mut search, &mut places)?;
    Ok(Contents {
        corpus: Source { bytes, modified, sha256: indexed.sha256 },
        passages: indexed.passages,
        search: search.finish().context(SEARCH)?,
        places: places.finish().context(PLACES)?,
    })
}
