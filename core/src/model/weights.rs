//! Weights from and to safetensors: read through a memory map straight into the flat tensors, written atomically.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memmap2::Mmap;
use safetensors::tensor::View;
use safetensors::{Dtype, SafeTensorError};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::header::{self, Entry};
use super::{Config, Model, StoredType};
use crate::files::{read_object, write_json};
use crate::input_error;
use crate::shard::Layout;
use crate::tokenizer::copy_files;

const ONE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Elements converted at once, so that a large tensor never exists twice.
const SLICE: usize = 1 << 23;

/// Bytes of one file above which a saved model is cut into several.
const SHARD_BYTES: usize = 4 << 30;

/// Loads a Hugging Face folder (`config.json`, one or many safetensors) in the given compute type. Nothing is
/// allocated before every file and every tensor's name, type and shape were found right.
pub fn load(dir: &Path, kind: Kind, device: Device) -> Result<Model> {
    let config = Config::load(dir)?;
    let maps = map_files(dir)?;
    let mut found = Found::new();
    for (path, map) in &maps {
        parse(path, map, &mut found)?;
    }
    check_index(dir, &found)?;
    let layouts = super::qwen2::layouts(&config);
    check(dir, config.tie_word_embeddings, &layouts, &found)?;

    let model = Model::empty(config, kind, device);
    copy(&found, &layouts, model.units.whole()?)?;
    Ok(model)
}

/// Fills flat tensors from a file that [`write_flats`] wrote: it must hold exactly the parameters of these layouts.
pub fn read_flats(path: &Path, layouts: &[Layout], flats: &[Tensor]) -> Result<()> {
    let (path, map) = map_file(path.to_path_buf())?;
    copy(&of_one_file(&path, &map, layouts)?, layouts, flats)
}

/// The network in a file that [`write_flats`] wrote. Nothing is allocated before the file was found right.
pub fn read_model(path: &Path, config: Config, kind: Kind, device: Device) -> Result<Model> {
    let (path, map) = map_file(path.to_path_buf())?;
    model_of(&path, &map, config, (kind, device))
}

/// [`read_model`] of a file's bytes; `path` names them in errors.
pub fn model_of(path: &Path, file: &[u8], config: Config, (kind, device): (Kind, Device)) -> Result<Model> {
    let layouts = super::qwen2::layouts(&config);
    let found = of_one_file(path, file, &layouts)?;
    let model = Model::empty(config, kind, device);
    copy(&found, &layouts, model.units.whole()?)?;
    Ok(model)
}

/// The tensors of one file, found to be exactly the parameters of these layouts.
fn of_one_file<'a>(path: &'a Path, file: &'a [u8], layouts: &[Layout]) -> Result<Found<'a>> {
    let mut found = Found::new();
    parse(path, file, &mut found)?;
    check(path, false, layouts, &found)?;
    Ok(found)
}

/// Tensors by name, each with the file it lies in.
type Found<'a> = BTreeMap<String, (&'a Path, Entry<'a>)>;

/// Copies what was found right into flat tensors.
fn copy(found: &Found, layouts: &[Layout], flats: &[Tensor]) -> Result<()> {
    for (layout, flat) in layouts.iter().zip(flats) {
        for param in &layout.params {
            let (path, entry) = &found[&param.name];
            fill(flat, param.offset, entry)
                .with_context(|| format!("cannot read {} from {}", param.name, path.display()))?;
        }
    }
    Ok(())
}

/// The safetensors files of a folder, mapped into memory.
fn map_files(dir: &Path) -> Result<Vec<(PathBuf, Mmap)>> {
    let mut names: Vec<String> = match read_index(dir)? {
        Some(index) => index.into_values().collect(),
        None => vec![ONE_FILE.into()],
    };
    names.sort();
    names.dedup();
    names.into_iter().map(|name| map_file(dir.join(name))).collect()
}

fn map_file(path: PathBuf) -> Result<(PathBuf, Mmap)> {
    let file = File::open(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => input_error!(
            "{}: no such file; a model folder holds model.safetensors, or {INDEX} and every file it names (a \
             pytorch_model.bin must be converted to safetensors first)",
            path.display()
        ),
        _ => anyhow::Error::new(error).context(format!("cannot open {}", path.display())),
    })?;
    // SAFETY: the map is read-only and lives only while the weights are copied out of it; like every reader of a
    // mapped model file we rely on nobody changing the file meanwhile (saving renames a new file into place).
    let map = unsafe { Mmap::map(&file) }.with_context(|| format!("cannot map {}", path.display()))?;
    Ok((path, map))
}

/// Which file holds each tensor, where the folder has an index.
fn read_index(dir: &Path) -> Result<Option<BTreeMap<String, String>>> {
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

/// Adds the tensors of a file to those found so far.
fn parse<'a>(path: &'a Path, file: &'a [u8], found: &mut Found<'a>) -> Result<()> {
    let entries = header::read(file).map_err(|why| {
        input_error!("{}: truncated or damaged ({} bytes; {why}); fetch the file again", path.display(), file.len())
    })?;
    for (name, entry) in entries {
        if let Some((other, _)) = found.insert(name.clone(), (path, entry)) {
            return Err(input_error!(
                "{}: tensor {name} is in {} too; fetch index and files of one model again",
                path.display(),
                other.display()
            ));
        }
    }
    Ok(())
}

/// Every tensor the index promises must be in the file it names.
fn check_index(dir: &Path, found: &Found) -> Result<()> {
    for (name, file) in read_index(dir)?.unwrap_or_default() {
        let path = dir.join(&file);
        if found.get(&name).is_none_or(|(place, _)| *place != path) {
            return Err(input_error!(
                "{}: tensor {name} is not in it, though {INDEX} says so; fetch index and files of one model again",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Compares what the files hold with what the layouts want; `tied`: a head may be there, and is not needed.
fn check(place: &Path, tied: bool, layouts: &[Layout], found: &Found) -> Result<()> {
    let wanted: HashMap<&str, &[i64]> =
        layouts.iter().flat_map(|l| &l.params).map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
    for (name, (path, entry)) in found {
        // Old files carry the rotary frequencies, and tied models may carry the head as a copy of the embedding.
        if (tied && name == "lm_head.weight") || name.ends_with(".rotary_emb.inv_freq") {
            continue;
        }
        let Some(shape) = wanted.get(name.as_str()) else {
            return Err(input_error!(
                "{}: unexpected tensor {name} (shape {:?}); config.json describes another network: take both from one model",
                path.display(),
                entry.shape
            ));
        };
        if !entry.shape.iter().map(|&n| n as i64).eq(shape.iter().copied()) {
            return Err(input_error!(
                "{}: tensor {name} has shape {:?}, but config.json wants {shape:?}; take both from one model",
                path.display(),
                entry.shape
            ));
        }
        element_kind(entry.dtype).ok_or_else(|| {
            input_error!(
                "{}: tensor {name} is stored as {}; only F32, F16 and BF16 can be read",
                path.display(),
                entry.dtype
            )
        })?;
    }
    // In the order of the layouts, so that the first missing tensor is named.
    for param in layouts.iter().flat_map(|l| &l.params) {
        if !found.contains_key(&param.name) {
            let tie = if param.name == "lm_head.weight" { " (or set tie_word_embeddings to true)" } else { "" };
            return Err(input_error!(
                "{}: tensor {} of shape {:?} is missing; take it and config.json from one whole model{tie}",
                place.display(),
                param.name,
                param.shape
            ));
        }
    }
    Ok(())
}

fn element_kind(dtype: Dtype) -> Option<Kind> {
    StoredType::ALL.iter().find(|stored| stored.dtype == dtype).map(|stored| stored.kind)
}

/// Copies a stored tensor to `offset` of a flat one, slice by slice, converting the type.
fn fill(flat: &Tensor, offset: i64, entry: &Entry) -> Result<()> {
    let kind = element_kind(entry.dtype).context("unreadable type")?;
    let width = kind.elt_size_in_bytes();
    let mut at = offset;
    for bytes in entry.data.chunks(SLICE * width) {
        let count = (bytes.len() / width) as i64;
        let slice = Tensor::f_from_data_size(bytes, &[count], kind)?;
        tch::no_grad(|| flat.f_narrow(0, at, count)?.f_copy_(&slice))?;
        at += count;
    }
    Ok(())
}

/// Writes a whole Hugging Face folder: configuration, weights, and the tokenizer files that lie in `source` (another
/// model folder), if any.
pub fn save_pretrained(model: &Model, dir: &Path, source: Option<&Path>, kind: Kind) -> Result<()> {
    in_new_folder(dir, |staged| {
        let eos = source.map_or(Ok(Vec::new()), |source| copy_files(source, staged))?;
        write(model, staged, &eos, kind)
    })
}

/// Fills a folder that appears under its name only when it is complete.
pub fn in_new_folder(dir: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if dir.exists() && dir.read_dir().map_or(true, |mut entries| entries.next().is_some()) {
        return Err(input_error!("{}: already exists; choose another folder or remove it", dir.display()));
    }
    let name = dir.file_name().ok_or_else(|| input_error!("{}: not the name of a folder", dir.display()))?;
    let staged = dir.with_file_name(format!(".{}.partial-{}", name.to_string_lossy(), std::process::id()));
    std::fs::create_dir_all(&staged).with_context(|| format!("cannot create {}", staged.display()))?;
    let filled = fill(&staged)
        .and_then(|()| std::fs::rename(&staged, dir).with_context(|| format!("cannot rename to {}", dir.display())));
    if filled.is_err() {
        // The first error is the one to report; a leftover folder does no harm.
        let _ = std::fs::remove_dir_all(&staged);
    }
    filled
}

/// Writes config.json and the safetensors of a model into an existing folder.
pub fn write(model: &Model, dir: &Path, eos: &[u32], kind: Kind) -> Result<()> {
    write_json(&dir.join("config.json"), &model.config.to_json(eos, kind)?)?;
    write_weights(model, dir, kind, SHARD_BYTES)
}

/// A parameter on its way to a file; its bytes exist only while they are written.
struct Stored {
    tensor: Tensor,
    dtype: Dtype,
    kind: Kind,
    shape: Vec<usize>,
}

impl Stored {
    fn new(tensor: Tensor, kind: Kind) -> Result<Self> {
        let shape = tensor.size().iter().map(|&n| n as usize).collect();
        Ok(Self { tensor, dtype: StoredType::of(kind)?.dtype, kind, shape })
    }
}

impl View for &Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let tensor = self.tensor.detach().to_device(Device::Cpu).to_kind(self.kind).contiguous();
        let mut bytes = vec![0; self.data_len()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.kind.elt_size_in_bytes()
    }
}

/// Writes the parameters as one file, or as several of at most `limit` bytes (but never less than one tensor).
fn write_weights(model: &Model, dir: &Path, kind: Kind, limit: usize) -> Result<()> {
    let mut shards: Vec<Vec<(String, Stored)>> = vec![Vec::new()];
    let (mut total, mut filled) = (0, 0);
    for (name, tensor) in model.named_parameters()? {
        let stored = Stored::new(tensor, kind)?;
        let bytes = (&stored).data_len();
        if filled > 0 && filled + bytes > limit {
            shards.push(Vec::new());
            filled = 0;
        }
        (total, filled) = (total + bytes, filled + bytes);
        shards.last_mut().context("there is a first file")?.push((name, stored));
    }
    let count = shards.len();
    let mut weight_map = serde_json::Map::new();
    for (number, shard) in shards.iter().enumerate() {
        let file = match count {
            1 => ONE_FILE.to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        write_shard(&dir.join(&file), shard)?;
        weight_map.extend(shard.iter().map(|(name, _)| (name.clone(), Value::from(file.as_str()))));
    }
    if count > 1 {
        write_json(&dir.join(INDEX), &json!({ "metadata": { "total_size": total }, "weight_map": weight_map }))?;
    }
    Ok(())
}

/// Writes flat tensors in float32 as one file, under the names of their parameters.
pub fn write_flats(path: &Path, layouts: &[Layout], flats: &[Tensor]) -> Result<()> {
    let mut named = Vec::new();
    for (layout, flat) in layouts.iter().zip(flats) {
        for param in &layout.params {
            named.push((param.name.clone(), Stored::new(layout.view(flat, param), Kind::Float)?));
        }
    }
    write_shard(path, &named)
}

fn write_shard(path: &Path, shard: &[(String, Stored)]) -> Result<()> {
    // transformers asks for this note on which library's tensors a file holds.
    let note = HashMap::from([("format".to_string(), "pt".to_string())]);
    let context = || format!("cannot write {}", path.display());
    // The library writes a private temporary file and renames it; the file it replaces says what a usual file's mode is.
    let usual = File::create(path).and_then(|file| file.metadata()).with_context(context)?.permissions();
    safetensors::serialize_to_file(shard.iter().map(|(name, stored)| (name, stored)), Some(note), path)
        .map_err(|error| match error {
            SafeTensorError::IoError(error) => error.into(),
            error => anyhow::Error::new(error),
        })
        .with_context(context)?;
    std::fs::set_permissions(path, usual).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;

    fn saved(limit: usize) -> (tempfile::TempDir, Model) {
        let dir = tempfile::tempdir().expect("a folder");
        let config = Config::shape("tiny").expect("tiny");
        let model = super::super::new::random(&config, 7, Kind::Float, Device::Cpu).expect("random weights");
        write_json(&dir.path().join("config.json"), &config.to_json(&[], Kind::Float).expect("json")).expect("written");
        write_weights(&model, dir.path(), Kind::Float, limit).expect("written");
        (dir, model)
    }

    fn refusal(dir: &Path) -> String {
        let error = load(dir, Kind::Float, Device::Cpu).expect_err("refused");
        assert!(error.downcast_ref::<InputError>().is_some(), "{error:#}");
        format!("{error:#}")
    }

    #[test]
    fn one_file_and_many_give_what_was_saved() {
        for (limit, files) in [(usize::MAX, 1), (100_000, 5)] {
            let (dir, model) = saved(limit);
            let found = dir.path().read_dir().expect("a folder").flatten();
            let count = found.filter(|f| f.path().extension().is_some_and(|e| e == "safetensors")).count();
            assert_eq!(count, files);
            let back = load(dir.path(), Kind::Float, Device::Cpu).expect("loaded");
            for (a, b) in model.units.held().iter().zip(back.units.held()) {
                assert_eq!(a, b);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_file_tensor_and_shapes() {
        let (dir, _) = saved(usize::MAX);
        let config = dir.path().join("config.json");
        let plain = std::fs::read_to_string(&config).expect("read");
        for (from, to, words) in [
            ("\"vocab_size\": 512", "\"vocab_size\": 500", &["model.embed_tokens.weight", "[512, 64]", "[500, 64]"]),
            ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", &["unexpected", "layers.1", "model.safetensors"]),
            ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", &["missing", "model.layers.2", "[64]"]),
            (
                "\"tie_word_embeddings\": true",
                "\"tie_word_embeddings\": false",
                &["lm_head.weight", "missing", "tie_word"],
            ),
        ] {
            std::fs::write(&config, plain.replace(from, to)).expect("written");
            let message = refusal(dir.path());
            for word in words {
                assert!(message.contains(word), "{message}: no {word}");
            }
        }
    }

    #[test]
    fn damaged_and_missing_files_are_refused() {
        let (dir, _) = saved(100_000);
        let file = dir.path().join("model-00002-of-00005.safetensors");
        let bytes = std::fs::read(&file).expect("read");
        for length in [0, 7, 100, bytes.len() - 1] {
            std::fs::write(&file, &bytes[..length]).expect("written");
            let message = refusal(dir.path());
            assert!(message.contains("model-00002-of-00005.safetensors: truncated"), "{message}");
        }
        std::fs::remove_file(&file).expect("removed");
        assert!(refusal(dir.path()).contains("model-00002-of-00005.safetensors: no such file"));
    }
}
