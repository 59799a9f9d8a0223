//! Models by name: a folder, or the id of a model on the Hugging Face Hub that the local cache holds. Nothing is
//! downloaded.
//!
//! `hf download ORG/NAME` fills `CACHE/models--ORG--NAME`: `refs/main` names a commit, and `snapshots/COMMIT` holds links to
//! the files (<https://huggingface.co/docs/huggingface_hub/guides/manage-cache>). The crate hf-hub reads this layout too, but
//! it brings a client of the network with it, and its cache ignores `HF_HUB_CACHE`.

use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::path::{Component, Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::weight_files;
use crate::input_error;

/// Least similarity, from 0 to 1, of a cached id that an error suggests.
const SIMILAR: f64 = 0.5;

/// The folder of a model: an existing one (`~` is the home folder), else the cached snapshot of a Hub id, `ORG/NAME` or
/// `ORG/NAME@REVISION`. Any other name comes back as it is, and its reader reports what is missing.
pub fn folder(name: &Path) -> Result<PathBuf> {
    let home = std::env::home_dir();
    let path = expanded(name, home.as_deref());
    match HubId::parse(name) {
        // The folder of scripts/models/get.py is no organisation.
        Some(id) if !path.exists() && id.org != "models" => {
            Cache::find(|name| std::env::var_os(name), home.as_deref()).snapshot(&id)
        }
        _ => Ok(path),
    }
}

/// Puts the home folder in place of a leading `~`, as a shell does.
fn expanded(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

/// A model of the Hub at one commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// `ORG/NAME`.
    pub id: String,
    /// The commit.
    pub revision: String,
}

impl Snapshot {
    /// The snapshot in a folder of the cache; none for any other folder.
    pub fn of(folder: &Path) -> Option<Self> {
        let name = |path: &Path| Some(path.file_name()?.to_str()?.to_string());
        let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
        Some(Self { id: id_of_entry(&name(snapshots.parent()?)?)?, revision: name(folder)? })
    }
}

impl Display for Snapshot {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}, revision {}", self.id, self.revision)
    }
}

/// `ORG/NAME`, perhaps at a branch, tag or commit.
#[derive(Debug, PartialEq)]
struct HubId<'a> {
    org: &'a str,
    name: &'a str,
    revision: Option<&'a str>,
}

impl<'a> HubId<'a> {
    fn parse(text: &'a Path) -> Option<Self> {
        let text = text.to_str()?;
        let (id, revision) = text.split_once('@').map_or((text, None), |(id, revision)| (id, Some(revision)));
        let (org, name) = id.split_once('/')?;
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(known) && !part.contains("--")
        };
        let sound = plain(org) && plain(name) && revision.is_none_or(|revision| revision.split('/').all(plain));
        sound.then_some(Self { org, name, revision })
    }

    /// The command that fills the cache.
    fn download(&self) -> String {
        let revision = self.revision.map_or(String::new(), |revision| format!(" --revision {revision}"));
        format!("hf download {}/{}{revision}", self.org, self.name)
    }
}

impl Display for HubId<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        self.revision.map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

/// The id of an entry of the cache, `models--ORG--NAME`.
fn id_of_entry(entry: &str) -> Option<String> {
    let (org, name) = entry.strip_prefix("models--")?.split_once("--")?;
    Some(format!("{org}/{name}"))
}

/// The Hugging Face cache.
#[derive(Debug)]
struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// The cache that the Python package `huggingface_hub` uses under these environment variables.
    fn find(variable: impl Fn(&str) -> Option<OsString>, home: Option<&Path>) -> Self {
        let set = |name| Some(expanded(variable(name).filter(|value| !value.is_empty())?.as_ref(), home));
        let default = || home.unwrap_or(Path::new("")).join(".cache");
        let own_home = || set("XDG_CACHE_HOME").unwrap_or_else(default).join("huggingface");
        let dir = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
        Self { dir: dir.unwrap_or_else(|| set("HF_HOME").unwrap_or_else(own_home).join("hub")) }
    }

    /// The folder of a model's snapshot.
    ///
    /// # Errors
    /// If the cache lacks the model, the revision, or one of the model's files.
    fn snapshot(&self, id: &HubId) -> Result<PathBuf> {
        let entry = self.dir.join(format!("models--{}--{}", id.org, id.name));
        let (cache, download) = (self.dir.display(), id.download());
        if !entry.is_dir() {
            let near = self.nearest(id).map_or(String::new(), |near| format!(" (it holds {near})"));
            return Err(input_error!(
                "{id}: no such folder, and no such model in the Hugging Face cache {cache}{near}: name an existing folder, or \
                 fetch the model by `{download}`"
            ));
        }
        let revision = id.revision.unwrap_or("main");
        // A commit has no file in `refs`: it names its folder itself.
        let commit = std::fs::read_to_string(entry.join("refs").join(revision)).unwrap_or_else(|_| revision.into());
        let is_name = matches!(Path::new(commit.trim()).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
        let folder = entry.join("snapshots").join(commit.trim());
        if !is_name || !folder.is_dir() {
            return Err(input_error!(
                "{id}: the Hugging Face cache {cache} does not hold its revision {revision}: fetch it by `{download}`"
            ));
        }
        match missing(&folder)? {
            Some(file) => Err(input_error!(
                "{id}: the Hugging Face cache {cache} holds only a part of it, {file} is missing: fetch the rest by `{download}`"
            )),
            None => Ok(folder),
        }
    }

    /// The cached id most like this one.
    fn nearest(&self, id: &HubId) -> Option<String> {
        let wanted = format!("{}/{}", id.org, id.name);
        let entries = std::fs::read_dir(&self.dir).ok()?.flatten();
        let ids = entries.filter_map(|entry| id_of_entry(entry.file_name().to_str()?));
        let like =
            |id: String| (strsim::normalized_damerau_levenshtein(&id.to_lowercase(), &wanted.to_lowercase()), id);
        let nearest = ids.map(like).max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(&a.1)))?;
        (nearest.0 >= SIMILAR).then_some(nearest.1)
    }
}

/// The first file of the network that a snapshot lacks. Links into the cache may lead nowhere.
fn missing(folder: &Path) -> Result<Option<String>> {
    // A model without safetensors is whole, and its reader says that it must be converted.
    let converted =
        !["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|file| folder.join(file).exists());
    let weights = if converted { weight_files::files_of(folder)? } else { Vec::new() };
    let all = std::iter::once("config.json".to_string()).chain(weights);
    Ok(all.into_iter().find(|file| !folder.join(file).exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        let id = |text: &'static str| HubId::parse(Path::new(text)).map(|id| (id.to_string(), id.download()));
        let known = |id: &str, download: &str| Some((id.to_string(), format!("hf download {download}")));
        assert_eq!(id("Qwen/Qwen2.5-1.5B-Instruct"), known("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"));
        assert_eq!(id("a/b@refs/pr/1"), known("a/b@refs/pr/1", "a/b --revision refs/pr/1"));
        for path in
            ["model", "/a/b", "./a", "../a", "~/a", "a/b/c", "a/", "a/b@", "a/b@../c", "a/b c", "a/.b", "a/b--c"]
        {
            assert_eq!(id(path), None, "{path}");
        }
    }

    /// The order is that of `huggingface_hub/constants.py` 2.4.0.
    #[test]
    fn the_cache_is_that_of_huggingface_hub() {
        let cache = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            Cache::find(value, Some(Path::new("/home/me"))).dir
        };
        let mut set = vec![("HF_HOME", "")];
        for (name, value, dir) in [
            ("none", "", "/home/me/.cache/huggingface/hub"),
            ("XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub"),
            ("HF_HOME", "~/hf", "/home/me/hf/hub"),
            ("HUGGINGFACE_HUB_CACHE", "/old", "/old"),
            ("HF_HUB_CACHE", "/new", "/new"),
        ] {
            set.insert(0, (name, value));
            assert_eq!(cache(&set), Path::new(dir), "{name}");
        }
    }

    #[test]
    fn a_folder_of_the_cache_names_its_model() {
        let snapshot = Snapshot::of(Path::new("/hub/models--Qwen--Qwen2.5-7B/snapshots/0a1b")).expect("a snapshot");
        assert_eq!(snapshot.to_string(), "Qwen/Qwen2.5-7B, revision 0a1b");
        for other in ["/hub/models--Qwen--Qwen2.5-7B/blobs/0a1b", "/models/snapshots/x", "snapshots/x", "", "/"] {
            assert_eq!(Snapshot::of(Path::new(other)), None, "{other}");
        }
    }
}
