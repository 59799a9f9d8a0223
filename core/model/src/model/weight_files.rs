//! The files of a Hugging Face folder that hold its weights: which ones they are, and what is odd about them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use super::arch::Architecture;
use super::stored::TensorFiles;
use crate::files::read_object;
use crate::input_error;

/// All weights in one file.
pub const ONE_FILE: &str = "model.safetensors";
/// The file of each tensor, where there are several.
pub const INDEX: &str = "model.safetensors.index.json";
const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Opens the weights of a Hugging Face folder, under the decoder's names. [`TensorFiles::check`] then compares them with a
/// network's.
pub fn open_files(dir: &Path, architecture: &Architecture) -> Result<TensorFiles<'static>> {
    Ok(open_any(dir)?.renamed(|name| Some(architecture.renamed(name))))
}

/// Opens the weights of a Hugging Face folder, of any network.
pub fn open_any(dir: &Path) -> Result<TensorFiles<'static>> {
    let index = read_index(dir)?;
    let files = TensorFiles::open(names_of(index.as_ref()).into_iter().map(|name| dir.join(name)).collect())?;
    check_index(dir, &index.unwrap_or_default(), &files)?;
    Ok(files)
}

/// Names of the files that hold the weights of a Hugging Face folder, whether they are there or not.
pub fn files_of(dir: &Path) -> Result<Vec<String>> {
    Ok(names_of(read_index(dir)?.as_ref()))
}

fn names_of(index: Option<&BTreeMap<String, String>>) -> Vec<String> {
    let Some(index) = index else { return vec![ONE_FILE.into()] };
    let names: BTreeSet<&String> = index.values().collect();
    names.into_iter().cloned().collect()
}

/// The file of each tensor, if the folder has an index and not the one file, which comes first as in transformers.
fn read_index(dir: &Path) -> Result<Option<BTreeMap<String, String>>> {
    if dir.join(ONE_FILE).exists() { Ok(None) } else { read_whole_index(dir) }
}

fn read_whole_index(dir: &Path) -> Result<Option<BTreeMap<String, String>>> {
    let path = dir.join(INDEX);
    let Some(json) = read_object(&path)? else { return Ok(None) };
    let map = json.get("weight_map").cloned().unwrap_or_default();
    let map: BTreeMap<String, String> = serde_json::from_value(map)
        .map_err(|_| input_error!("{}: weight_map must name a file for each tensor; fetch it again", path.display()))?;
    if map.values().any(|file| file.contains(['/', '\\']) || !file.ends_with(".safetensors")) {
        return Err(input_error!(
            "{}: weight_map names something else than safetensors files of the folder; fetch it again",
            path.display()
        ));
    }
    Ok(Some(map))
}

/// Checks that every tensor of the index is in the file that the index names.
fn check_index(dir: &Path, index: &BTreeMap<String, String>, files: &TensorFiles) -> Result<()> {
    for (name, file) in index {
        let path = dir.join(file);
        if files.file_of(name) != Some(&path) {
            return Err(input_error!(
                "{}: tensor {name} is not in it, though {INDEX} says so; fetch index and files of one model again",
                path.display()
            ));
        }
    }
    Ok(())
}

/// True if the files hold a head that differs from the embedding. Files that cannot be read are not judged here.
pub fn head_is_its_own(dir: &Path, architecture: &Architecture) -> bool {
    let Ok(files) = open_files(dir, architecture) else { return false };
    files.file_of(HEAD).is_some() && files.same(HEAD, EMBEDDING).is_ok_and(|same| !same)
}

/// A warning about weights that are read otherwise than a look at the folder suggests; `ties`: the network's head is its embedding.
pub fn warning(dir: &Path, ties: bool) -> Option<String> {
    let named = read_whole_index(dir).ok().flatten().map(|index| names_of(Some(&index))).unwrap_or_default();
    if !named.is_empty() && dir.join(ONE_FILE).exists() && named.iter().all(|name| dir.join(name).exists()) {
        return Some(format!(
            "{} has {ONE_FILE} and also {INDEX} with the files that it names; {ONE_FILE} is read, as in transformers: remove \
             the others, or it",
            dir.display()
        ));
    }
    let tied = read_object(&dir.join("config.json")).ok().flatten()?.get("tie_word_embeddings")? == true;
    (tied && !ties).then(|| {
        format!(
            "{} ties head and embedding in config.json, but holds a {HEAD} that differs from the embedding; the stored head \
             is used, as in transformers, and an export has it",
            dir.display()
        )
    })
}
