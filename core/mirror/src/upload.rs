//! One file's way into the store, part by part.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{ObjectStore, ObjectStoreExt};
use sha2::{Digest, Sha256};

use crate::Sum;
use crate::progress::Progress;
use crate::record::{Parts, RecordFile};
use crate::store::{Store, told};

/// The size of a part. A file of more than [`MOST_PARTS`] of them has larger parts.
const PART: u64 = 16 << 20;
/// S3 allows 10,000 parts.
const MOST_PARTS: u64 = 9_000;
/// Parts on their way at once.
const AT_ONCE: usize = 4;

/// A file that is open: it can be read to its end even if its name is removed meanwhile.
#[derive(Debug)]
pub struct Opened {
    pub name: String,
    file: File,
    pub bytes: u64,
    /// The checksum of a file of a checkpoint; a growing file has none.
    pub sha256: Option<String>,
}

impl Opened {
    /// Opens a file of a checkpoint.
    pub fn summed(folder: &Path, name: &str, sum: &Sum) -> Result<Self> {
        let path = folder.join(name);
        let file = File::open(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { name: name.into(), file, bytes: sum.bytes, sha256: Some(sum.sha256.clone()) })
    }

    /// Opens a file of the run at its present size; one that grows gets a copy of what it has.
    pub fn file(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let open = || {
            let file = File::open(&path)?;
            let bytes = file.metadata()?.len();
            Ok::<_, std::io::Error>((file, bytes))
        };
        let (file, bytes) = open().with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { name: name.into(), file, bytes, sha256: None })
    }

    fn read(&self, from: u64, bytes: u64) -> Result<Bytes> {
        let mut buffer = vec![0; bytes as usize];
        self.file.read_exact_at(&mut buffer, from).with_context(|| format!("reading {}", self.name))?;
        Ok(buffer.into())
    }

    /// The file's sum. Refuses content that is not what the manifest says.
    fn sum(&self, hasher: Sha256) -> Result<Sum> {
        let (sha256, known) = (hex(hasher), self.sha256.as_ref());
        ensure!(
            known.is_none_or(|known| sha256 == *known),
            "{} is damaged on disk: it does not have the checksum of its manifest",
            self.name
        );
        Ok(Sum { bytes: self.bytes, sha256 })
    }
}

/// A SHA-256 as hexadecimal digits.
pub fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Uploads a file of a checkpoint under the name `key`. Parts that the record has are not sent again.
pub async fn checkpoint_file(
    (store, key): (&Store, &str),
    file: &Opened,
    record: &mut RecordFile,
    progress: &Progress,
) -> Result<()> {
    let sum = file.sha256.clone().unwrap_or_default();
    match (&store.parts, file.bytes > PART) {
        (Some(parts), true) => in_parts((store, &**parts, key), file, record, progress).await?,
        _ => drop(whole((store, key), file, progress).await?),
    }
    record.record.done.insert(file.name.clone(), sum);
    record.record.part = None;
    record.save()
}

/// Uploads a file in one process, and returns its sum.
pub async fn whole((store, key): (&Store, &str), file: &Opened, progress: &Progress) -> Result<Sum> {
    let (context, path) = (|| format!("writing {}/{key}", store.url), store.key(key));
    let mut hasher = Sha256::new();
    if file.bytes <= PART {
        let bytes = file.read(0, file.bytes)?;
        hasher.update(&bytes);
        let sum = file.sum(hasher)?;
        store.objects.put(&path, bytes.into()).await.map_err(told).with_context(context)?;
        progress.add(file.bytes);
        return Ok(sum);
    }
    let mut upload =
        store.objects.put_multipart_opts(&path, Default::default()).await.map_err(told).with_context(context)?;
    let size = part_bytes(file.bytes);
    let sent = async {
        for part in 0..file.bytes.div_ceil(size) {
            let from = part * size;
            let bytes = file.read(from, size.min(file.bytes - from))?;
            hasher.update(&bytes);
            let sent = bytes.len() as u64;
            upload.put_part(bytes.into()).await.map_err(told).with_context(context)?;
            progress.add(sent);
        }
        file.sum(hasher)
    };
    match sent.await {
        Ok(sum) => upload.complete().await.map(|_| sum).map_err(told).with_context(context),
        Err(error) => {
            let _ = upload.abort().await; // the first error is the one to report
            Err(error)
        }
    }
}

/// Uploads a large file in parts, several at once, and records each, so that another process can continue.
async fn in_parts(
    (store, parts, key): (&Store, &dyn MultipartStore, &str),
    file: &Opened,
    record: &mut RecordFile,
    progress: &Progress,
) -> Result<()> {
    let (context, path) = (|| format!("writing {}/{key}", store.url), store.key(key));
    let (sum, size) = (file.sha256.clone().unwrap_or_default(), part_bytes(file.bytes));
    let count = file.bytes.div_ceil(size) as usize;
    let earlier = record.record.part.take().filter(|found| {
        (&found.file, &found.sha256, found.part_bytes, found.parts.len()) == (&file.name, &sum, size, count)
    });
    let started = match earlier {
        Some(found) => found,
        None => {
            let id = parts.create_multipart(&path).await.map_err(told).with_context(context)?;
            Parts { file: file.name.clone(), sha256: sum, part_bytes: size, id, parts: vec![None; count] }
        }
    };
    let (id, mut names) = (started.id.clone(), started.parts.clone());
    let known = names.clone();
    record.record.part = Some(started);
    record.save()?;
    let (mut hasher, is_gone) = (Sha256::new(), Cell::new(false));
    // Read in order, so that one hasher sees the file; sent in any order.
    let mut sending = stream::iter(0..count)
        .map(|part| {
            let from = part as u64 * size;
            let bytes = file.read(from, size.min(file.bytes - from)).inspect(|bytes| hasher.update(bytes));
            let (known, id, path, is_gone) = (known[part].clone(), &id, &path, &is_gone);
            async move {
                let (bytes, None) = (bytes?, &known) else { return Ok((part, known)) };
                let length = bytes.len() as u64;
                let sent = parts.put_part(path, id, part, bytes.into()).await;
                // Stores forget an upload that nobody completes for some days.
                is_gone.set(is_gone.get() || matches!(sent, Err(object_store::Error::NotFound { .. })));
                let name = sent.map_err(told).with_context(context)?.content_id;
                progress.add(length);
                Ok::<_, anyhow::Error>((part, Some(name)))
            }
        })
        .buffer_unordered(AT_ONCE);
    let mut sent = Ok(());
    while let Some(part) = sending.next().await {
        match part {
            Ok((part, name)) if names[part] != name => {
                names[part] = name;
                record.record.part.iter_mut().for_each(|record| record.parts.clone_from(&names));
                record.save()?;
            }
            Ok(_) => {}
            Err(error) => {
                sent = Err(error);
                break; // the next attempt sends the parts that are missing
            }
        }
    }
    drop(sending);
    let all = sent.is_ok();
    let finished = match sent.and_then(|()| file.sum(hasher)) {
        Err(error) => Err(error),
        Ok(_) => {
            let names = names.into_iter().flatten().map(|content_id| PartId { content_id }).collect();
            parts.complete_multipart(&path, &id, names).await.map(drop).map_err(told).with_context(context)
        }
    };
    if finished.is_err() && (all || is_gone.get()) {
        record.record.part = None;
        record.save()?;
        let _ = parts.abort_multipart(&path, &id).await; // the first error is the one to report
    }
    finished
}

/// The size of the parts of a file.
fn part_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(MOST_PARTS).next_multiple_of(1 << 20).max(PART)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::store::block_on;

    const KEY: &str = "checkpoints/iteration-000001/policy.safetensors";

    #[test]
    fn a_large_file_has_larger_parts() {
        assert_eq!(part_bytes(1 << 30), PART);
        for bytes in [200 << 30, 5u64 << 40] {
            assert!(bytes.div_ceil(part_bytes(bytes)) < 10_000);
        }
    }

    /// A file of two parts and a rest, with its checksum.
    fn file(dir: &Path) -> Result<(Vec<u8>, Opened)> {
        let content: Vec<u8> = (0..2 * PART + 99).map(|at| (at % 251) as u8).collect();
        std::fs::write(dir.join("policy.safetensors"), &content)?;
        let sum = Sum { bytes: content.len() as u64, sha256: hex(Sha256::new_with_prefix(&content)) };
        Ok((content, Opened::summed(dir, "policy.safetensors", &sum)?))
    }

    #[test]
    fn another_process_continues_an_upload() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let (memory, (content, opened)) = (Arc::new(InMemory::new()), file(dir.path())?);
        let store = Store::of_memory(memory.clone());
        let mut record = RecordFile::open(dir.path(), &store.url);
        record.begin("iteration-000001");
        block_on(async {
            let path = store.key(KEY);
            let id = memory.create_multipart(&path).await?;
            let second = content[PART as usize..2 * PART as usize].to_vec();
            let sent = memory.put_part(&path, &id, 1, second.into()).await?;
            let parts = vec![None, Some(sent.content_id), None];
            let (file, sha256) = (opened.name.clone(), opened.sha256.clone().unwrap_or_default());
            record.record.part = Some(Parts { file, sha256, part_bytes: PART, id, parts });
            record.save()?;
            let mut again = RecordFile::open(dir.path(), &store.url);
            assert_eq!(again.record, record.record);
            let progress = Progress::default();
            checkpoint_file((&store, KEY), &opened, &mut again, &progress).await?;
            assert_eq!(progress.bytes(), PART + 99); // the second part was there
            assert_eq!(store.read(KEY).await?.as_deref(), Some(&content[..]));
            assert_eq!(again.record.part, None);
            assert_eq!(again.record.done.get(&opened.name), opened.sha256.as_ref());
            Ok(())
        })
    }

    #[test]
    fn damage_on_disk_never_appears_in_the_store() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let (_, opened) = file(dir.path())?;
        std::fs::OpenOptions::new().write(true).open(dir.path().join(&opened.name))?.write_at(&[7], PART + 5)?;
        let store = Store::of_memory(Arc::new(InMemory::new()));
        let mut record = RecordFile::open(dir.path(), &store.url);
        block_on(async {
            let sent = checkpoint_file((&store, KEY), &opened, &mut record, &Progress::default()).await;
            assert!(sent.expect_err("damaged").to_string().contains("damaged on disk"));
            assert_eq!((store.read(KEY).await?, &record.record.part), (None, &None));
            Ok(())
        })
    }
}
