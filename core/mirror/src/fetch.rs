//! Fetches a run from its mirror into an empty directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use object_store::{GetOptions, GetRange, ObjectStore};
use sha2::{Digest, Sha256};

use crate::files::FETCHING;
use crate::store::{Store, block_on, told};
use crate::sync::checkpoint_of;
use crate::upload::hex;
use crate::{CHECKPOINTS, FILES, Format, LATEST, MANIFEST, Sum, Sums};

/// The file that makes a directory a run. It is fetched last.
const RECIPE: &str = "recipe.yaml";
/// Attempts at a file, each of which continues the one before.
const ATTEMPTS: usize = 5;

/// Content of a store that is not what was uploaded, however often it is asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Damaged(String);

/// A run that was fetched.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The checkpoint to continue from.
    pub newest: String,
    /// Checkpoints and files in the store that are damaged.
    pub skipped: Vec<String>,
    pub bytes: u64,
}

/// Fetches the run of a store into `dir`, which holds nothing but an earlier attempt. None where the store holds no checkpoint.
///
/// # Errors
/// When the store does not answer, or holds a run of which no checkpoint is whole: a new run must not begin in its place.
pub fn fetch(store: &Store, dir: &Path, format: Format) -> Result<Option<Fetched>> {
    block_on(async {
        let objects: BTreeMap<String, u64> = store.list().await?.into_iter().collect();
        let folders: BTreeSet<String> =
            objects.keys().filter_map(|object| checkpoint_of(object)).map(str::to_string).collect();
        let whole = folders.iter().filter(|name| objects.contains_key(&format!("{CHECKPOINTS}/{name}/{MANIFEST}")));
        let mut names = (format.order)(whole.cloned().collect());
        if names.is_empty() {
            ensure!(
                !objects.contains_key(LATEST),
                "the mirror {} names a checkpoint but holds no whole one: restore it, or remove the object `{LATEST}` to begin anew",
                store.url
            );
            return Ok(None);
        }
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(dir.join(FETCHING), &store.url))
            .with_context(|| format!("writing to {}", dir.display()))?;
        let mut run = Run { store, dir, format, objects: &objects, bytes: 0 };
        let (mut newest, mut skipped) = (None, Vec::new());
        names.reverse();
        for name in names {
            match run.checkpoint(&name).await {
                Ok(()) => newest = newest.or(Some(name)),
                Err(error) if error.is::<Damaged>() => skipped.push(format!("{name}: {error:#}")),
                Err(error) => return Err(error),
            }
        }
        let Some(newest) = newest else {
            anyhow::bail!("all checkpoints of the mirror {} are damaged: {}", store.url, skipped.join("; "));
        };
        if !skipped.is_empty() {
            store.write(LATEST, newest.clone().into_bytes()).await?;
        }
        let reference = folders.iter().find(|name| (format.order)(vec![name.to_string()]).is_empty());
        if let Some(name) = reference {
            run.checkpoint(name).await?;
        }
        let sums: Sums = match store.read(FILES).await? {
            Some(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("reading {}/{FILES}", store.url))?,
            None => Sums::new(),
        };
        let is_file = |object: &&str| checkpoint_of(object).is_none() && ![LATEST, FILES, RECIPE].contains(object);
        for name in objects.keys().map(String::as_str).filter(is_file).chain([RECIPE]) {
            // A writer that was killed may have replaced the file and not its sum.
            let sum = sums.get(name).filter(|sum| objects.get(name) == Some(&sum.bytes));
            let path = dir.join(name);
            match run.file(name, &path, sum).await {
                Err(error) if error.is::<Damaged>() => {
                    run.file(name, &path, None).await?;
                    skipped.push(format!("{error:#}; it was fetched as it is"));
                }
                fetched => fetched?,
            }
        }
        fs::remove_file(dir.join(FETCHING)).with_context(|| format!("removing {}", dir.join(FETCHING).display()))?;
        Ok(Some(Fetched { newest, skipped, bytes: run.bytes }))
    })
}

struct Run<'a> {
    store: &'a Store,
    dir: &'a Path,
    format: Format,
    objects: &'a BTreeMap<String, u64>,
    bytes: u64,
}

impl Run<'_> {
    /// Fetches a checkpoint, which appears whole or not at all.
    async fn checkpoint(&mut self, name: &str) -> Result<()> {
        let folder = self.dir.join(CHECKPOINTS).join(name);
        if folder.exists() {
            return Ok(()); // an earlier attempt fetched it
        }
        let partial = self.dir.join(CHECKPOINTS).join(format!("{name}.tmp"));
        fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
        let key = |file: &str| format!("{CHECKPOINTS}/{name}/{file}");
        for (name, sum) in self.manifest(&key(MANIFEST), &partial).await? {
            self.file(&key(&name), &partial.join(&name), Some(&sum)).await?;
        }
        let renamed =
            File::open(&partial).and_then(|folder| folder.sync_all()).and_then(|()| fs::rename(&partial, &folder));
        renamed.with_context(|| format!("writing {}", folder.display()))
    }

    /// Fetches the manifest of a checkpoint into its folder. It has a checksum of its own: a damaged one is fetched again.
    async fn manifest(&mut self, object: &str, folder: &Path) -> Result<Sums> {
        let mut attempt = 1;
        loop {
            self.file(object, &folder.join(MANIFEST), None).await?;
            match (self.format.sums)(folder) {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(Damaged(format!("{}/{object}: {error:#}", self.store.url)).into()),
                sums => return sums,
            }
        }
    }

    /// Fetches an object, and continues where an attempt broke off. Content that is not as expected is fetched anew.
    async fn file(&mut self, object: &str, path: &Path, expected: Option<&Sum>) -> Result<()> {
        let here = || format!("fetching {}/{object}", self.store.url);
        let damaged = |why: String| anyhow::Error::new(Damaged(format!("{}/{object} {why}", self.store.url)));
        let size = *self.objects.get(object).ok_or_else(|| damaged("is missing".into()))?;
        if let Some(sum) = expected.filter(|sum| size != sum.bytes) {
            return Err(damaged(format!("has {size} bytes of {}", sum.bytes)));
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let mut last = None;
        let (mut file, mut hasher, mut written) = (None, Sha256::new(), 0);
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(200 << attempt)).await;
            }
            let target = match &mut file {
                Some(file) => file,
                none => none.insert(File::create(path).with_context(|| format!("writing {}", path.display()))?),
            };
            if let Err(error) = self.stream(object, size, target, &mut hasher, &mut written).await {
                last = Some(error.context(here()));
                continue;
            }
            let found = hex(std::mem::take(&mut hasher));
            if expected.is_none_or(|sum| found == sum.sha256) {
                let synced = target.sync_all().with_context(|| format!("writing {}", path.display()));
                self.bytes += size;
                return synced;
            }
            last = Some(damaged("does not have its checksum".into()));
            (file, written) = (None, 0);
        }
        Err(last.context("an attempt failed")?)
    }

    /// Appends the bytes of an object from `written` on.
    async fn stream(
        &self,
        object: &str,
        size: u64,
        file: &mut File,
        hasher: &mut Sha256,
        written: &mut u64,
    ) -> Result<()> {
        if *written == size {
            return Ok(()); // an empty object has no range
        }
        let range = Some(GetRange::Bounded(*written..size));
        let options = GetOptions { range, ..GetOptions::default() };
        let mut stream =
            self.store.objects.get_opts(&self.store.key(object), options).await.map_err(told)?.into_stream();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(told)?;
            file.write_all(&bytes).context("writing to disk")?;
            hasher.update(&bytes);
            *written += bytes.len() as u64;
        }
        ensure!(*written == size, "the store sent {written} bytes of {size}");
        Ok(())
    }
}
