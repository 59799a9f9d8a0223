//! A directory and its mirror in memory. Checkpoints are folders with a list of their files.

use std::fs;
use std::sync::Arc;

use object_store::memory::InMemory;
use sha2::{Digest, Sha256};

use super::*;
use crate::store::block_on;
use crate::sync::Mirror;
use crate::upload::hex;

const FORMAT: Format = Format { list, order, sums };

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    all.sort_by_key(|path| (!path.ends_with("reference"), path.clone()));
    Ok(all)
}

fn order(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| name.starts_with("iteration"));
    names.sort();
    names
}

fn sums(folder: &Path) -> Result<Sums> {
    Ok(serde_json::from_slice(&fs::read(folder.join(MANIFEST))?)?)
}

fn write(dir: &Path, name: &str, content: &[u8]) -> Result<()> {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("a folder"))?;
    Ok(fs::write(path, content)?)
}

fn checkpoint(dir: &Path, name: &str, content: &[u8]) -> Result<()> {
    let sum = Sum { bytes: content.len() as u64, sha256: hex(Sha256::new_with_prefix(content)) };
    write(dir, &format!("checkpoints/{name}/policy.safetensors"), content)?;
    let sums = Sums::from([("policy.safetensors".to_string(), sum)]);
    write(dir, &format!("checkpoints/{name}/{MANIFEST}"), &serde_json::to_vec(&sums)?)
}

/// The files of a directory with their contents, but the mirror's own.
fn contents(dir: &Path, below: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir.join(below))? {
        let entry = entry?;
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.extend(contents(dir, &format!("{name}/"))?);
        } else if name != record::RECORD {
            found.insert(name, fs::read(entry.path())?);
        }
    }
    Ok(found)
}

#[test]
fn a_run_comes_back_as_it_was() -> Result<()> {
    let (dir, back) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let store = Store::of_memory(Arc::new(InMemory::new()));
    // Characters that a store encodes, and an empty file.
    for name in ["recipe.yaml", "metrics.jsonl", "rollouts/a b.jsonl", "notes #1 ~50 %.txt", "images/é+[1].png"] {
        write(dir.path(), name, name.as_bytes())?;
    }
    write(dir.path(), "outcomes.jsonl", b"")?;
    checkpoint(dir.path(), "reference", b"first")?;
    checkpoint(dir.path(), "iteration-000001", b"one")?;
    checkpoint(dir.path(), "iteration-000002+000001", b"two")?;
    let mut mirror = Mirror::new(store.clone(), dir.path(), FORMAT);
    block_on(async {
        assert_eq!(mirror.sync(|| false).await?.as_deref(), Some("iteration-000002+000001"));
        // Retention removes one, another life of the run writes one of the same name, and one is new.
        fs::remove_dir_all(dir.path().join("checkpoints/iteration-000001"))?;
        checkpoint(dir.path(), "iteration-000002+000001", b"another life")?;
        checkpoint(dir.path(), "iteration-000003", b"three")?;
        write(dir.path(), "metrics.jsonl", b"two rows")?;
        let before = mirror.progress.bytes();
        assert_eq!(mirror.sync(|| false).await?.as_deref(), Some("iteration-000003"));
        assert_eq!(
            mirror.progress.bytes() - before,
            (b"another life".len() + b"three".len() + b"two rows".len()) as u64
        );
        assert!(store.list().await?.iter().all(|(name, _)| !name.contains("iteration-000001")));
        Ok(())
    })?;
    let fetched = fetch(&store, back.path(), FORMAT)?.expect("a run");
    assert_eq!((&*fetched.newest, fetched.skipped.len()), ("iteration-000003", 0));
    assert_eq!(contents(back.path(), "")?, contents(dir.path(), "")?);
    Ok(())
}

#[test]
fn a_newest_checkpoint_that_is_gone_is_not_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let store = Store::of_memory(Arc::new(InMemory::new()));
    checkpoint(dir.path(), "iteration-000001", b"one")?;
    let mut mirror = Mirror::new(store.clone(), dir.path(), FORMAT);
    block_on(async {
        mirror.sync(|| false).await?;
        // Retention removes a checkpoint between the look at the folder and the upload.
        checkpoint(dir.path(), "iteration-000002", b"two")?;
        fs::remove_file(dir.path().join("checkpoints/iteration-000002/policy.safetensors"))?;
        assert_eq!(mirror.sync(|| false).await?, None);
        assert_eq!(store.read(LATEST).await?.as_deref(), Some(&b"iteration-000001"[..]));
        assert!(store.list().await?.iter().any(|(name, _)| name == "checkpoints/iteration-000001/manifest.json"));
        Ok(())
    })
}
