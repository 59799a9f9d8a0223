//! Brings a mirror up to date: the run's files, then whole checkpoints, the newest first, then the name of the newest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::files::{Stamp, files, is_written_once};
use crate::progress::Progress;
use crate::record::{Record, RecordFile};
use crate::store::Store;
use crate::upload::{Opened, checkpoint_file, whole};
use crate::{CHECKPOINTS, FILES, Format, LATEST, MANIFEST, Sums};

/// A run directory with its mirror.
#[derive(Debug)]
pub struct Mirror {
    pub store: Store,
    dir: PathBuf,
    format: Format,
    record: RecordFile,
    /// The files that this process has uploaded, as they were then.
    sent: BTreeMap<String, Stamp>,
    /// The sums of the run's files in the store, and those that the store's list has; none before the first look at it.
    sums: Sums,
    listed: Option<Sums>,
    /// The manifests that the store is known to have, by the checkpoint's name.
    manifests: BTreeMap<String, Vec<u8>>,
    pub progress: Progress,
}

impl Mirror {
    pub fn new(store: Store, dir: &Path, format: Format) -> Self {
        let record = RecordFile::open(dir, &store.url);
        let (sent, sums, manifests) = (BTreeMap::new(), Sums::new(), BTreeMap::new());
        Self {
            store,
            dir: dir.into(),
            format,
            record,
            sent,
            sums,
            listed: None,
            manifests,
            progress: Progress::default(),
        }
    }

    /// Makes the mirror equal to the directory, and returns the name of its newest checkpoint. `outdated` says that another checkpoint was
    /// saved meanwhile: what remains waits for the next call, which begins with that one.
    pub async fn sync(&mut self, outdated: impl Fn() -> bool) -> Result<Option<String>> {
        // Before the run's files are read: they are then younger than all of these checkpoints.
        let local = (self.format.list)(&self.dir.join(CHECKPOINTS))?;
        let remote: BTreeMap<String, u64> = self.store.list().await?.into_iter().collect();
        self.send_files(&remote).await?;
        let Some(newest) = local.last() else { return Ok(None) };
        let name = name_of(newest);
        let reference = local.first().filter(|first| (self.format.order)(vec![name_of(first)]).is_empty());
        for folder in reference.into_iter().chain([newest]) {
            if !self.send_checkpoint(folder, &remote).await? {
                return Ok(None);
            }
        }
        self.store.write(LATEST, name.clone().into_bytes()).await?;
        for folder in local.iter().rev().skip(1) {
            if outdated() {
                return Ok(Some(name));
            }
            self.send_checkpoint(folder, &remote).await?;
        }
        self.record.clear();
        let kept: BTreeSet<String> = local.iter().map(|folder| name_of(folder)).collect();
        self.remove_others(&remote, &kept).await?;
        Ok(Some(name))
    }

    /// Uploads the files of the run that have changed.
    async fn send_files(&mut self, remote: &BTreeMap<String, u64>) -> Result<()> {
        if self.listed.is_none() {
            let found = self.store.read(FILES).await?;
            self.sums = found.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
            self.listed = Some(self.sums.clone());
        }
        for (name, stamp) in files(&self.dir)? {
            let known = self.sent.get(&name) == Some(&stamp);
            let same = is_written_once(&name) && remote.get(&name) == Some(&stamp.0);
            if known || same {
                continue;
            }
            let Ok(file) = Opened::file(&self.dir, &name) else { continue }; // it was removed
            let sum = whole((&self.store, &name), &file, &self.progress).await?;
            self.sent.insert(name.clone(), stamp);
            self.sums.insert(name, sum);
        }
        if self.listed.as_ref() != Some(&self.sums) {
            self.store.write(FILES, serde_json::to_vec(&self.sums)?).await?;
            self.listed = Some(self.sums.clone());
        }
        Ok(())
    }

    /// Uploads a checkpoint that the mirror lacks. Returns false for one that retention has removed meanwhile: a newer one was saved.
    async fn send_checkpoint(&mut self, folder: &Path, remote: &BTreeMap<String, u64>) -> Result<bool> {
        let name = name_of(folder);
        let key = |file: &str| format!("{CHECKPOINTS}/{name}/{file}");
        let Ok(manifest) = std::fs::read(folder.join(MANIFEST)) else { return Ok(false) };
        let there = remote.contains_key(&key(MANIFEST));
        if there && !self.manifests.contains_key(&name) {
            let found = self.store.read(&key(MANIFEST)).await?;
            self.manifests.extend(found.map(|found| (name.clone(), found)));
        }
        if self.manifests.get(&name) == Some(&manifest) {
            return Ok(true);
        }
        let sums = match (self.format.sums)(folder) {
            Err(_) if !folder.exists() => return Ok(false),
            sums => sums.with_context(|| format!("the checkpoint {}", folder.display()))?,
        };
        let opened: Result<Vec<Opened>> = sums.iter().map(|(name, sum)| Opened::summed(folder, name, sum)).collect();
        let Ok(opened) = opened else { return Ok(false) };
        if there {
            // Another one of this name, of an earlier life of the run: half of each would be damage.
            self.store.remove(&key(MANIFEST)).await?;
            self.manifests.remove(&name);
        }
        self.abort_other(&name).await;
        self.record.begin(&name);
        for file in &opened {
            let sent = self.record.record.done.get(&file.name);
            if sent.is_some() && sent == file.sha256.as_ref() {
                continue;
            }
            checkpoint_file((&self.store, &key(&file.name)), file, &mut self.record, &self.progress).await?;
        }
        self.store.write(&key(MANIFEST), manifest.clone()).await?;
        self.manifests.insert(name, manifest);
        Ok(true)
    }

    /// Ends the upload of a file of another checkpoint, which a newer one overtook: stores keep, and charge for, its parts until then.
    async fn abort_other(&mut self, name: &str) {
        let Record { checkpoint, part, .. } = &mut self.record.record;
        if checkpoint == name {
            return;
        }
        if let (Some(parts), Some(begun)) = (&self.store.parts, part.take()) {
            let path = self.store.key(&format!("{CHECKPOINTS}/{checkpoint}/{}", begun.file));
            let _ = parts.abort_multipart(&path, &begun.id).await; // stores remove old ones by themselves, too
        }
    }

    /// Removes checkpoints that the directory does not keep, each one's manifest first.
    async fn remove_others(&mut self, remote: &BTreeMap<String, u64>, kept: &BTreeSet<String>) -> Result<()> {
        let mut old: Vec<&String> =
            remote.keys().filter(|object| checkpoint_of(object).is_some_and(|name| !kept.contains(name))).collect();
        old.sort_by_key(|object| !object.ends_with(&format!("/{MANIFEST}")));
        for object in old {
            self.store.remove(object).await?;
        }
        self.manifests.retain(|name, _| kept.contains(name));
        Ok(())
    }
}

/// The name of a folder.
fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The checkpoint of an object.
pub fn checkpoint_of(object: &str) -> Option<&str> {
    Some(object.strip_prefix(CHECKPOINTS)?.strip_prefix('/')?.split_once('/')?.0)
}
