//! Weights of Hugging Face folders: read directly into the flat tensors, written atomically.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::VisionConfig;
use super::config_json::PROCESSOR;
use super::new_folder::in_new_folder;
use super::stored::{Expected, Outgoing, TensorFiles, of_files, of_model, to_bytes, write_file};
use super::unit_weights::layouts;
use super::weight_files::{INDEX, ONE_FILE, open_files};
use super::{Config, Model};
use crate::files::{hex, read_object, write_json, write_whole};
use crate::ranks::Solo;
use crate::shard::Layout;
use crate::tokenizer::copy_files;

/// Most bytes of one file of a saved model.
const FILE_BYTES: usize = 4 << 30;

/// Loads a Hugging Face folder (`config.json`, one or many safetensors) in the given compute type. Allocates nothing before
/// every file, and every tensor's name, type and shape, is checked.
pub fn load(dir: &Path, kind: Kind, device: Device) -> Result<Model> {
    let (config, files) = open(dir)?;
    let model = Model::empty(config, kind, device);
    files.fill(&model.layouts, &Solo { device }, model.units.whole()?)?;
    Ok(model)
}

/// Opens the files of a Hugging Face folder, and checks that they hold its network. [`TensorFiles::fill`] then reads a
/// rank's shards.
pub fn open(dir: &Path) -> Result<(Config, TensorFiles<'static>)> {
    let config = Config::load(dir)?;
    let files = open_files(dir, config.architecture)?;
    let layouts = layouts(&config);
    files.check(dir, &Expected { layouts: &layouts, kind: None, tied: config.tie_word_embeddings })?;
    Ok((config, files))
}

/// SHA-256 of the weights of a Hugging Face folder in the given compute type, to which adapters belong. It does not depend
/// on the number of ranks and files.
pub fn fingerprint(dir: &Path, kind: Kind) -> Result<String> {
    let (config, files) = open(dir)?;
    let (mut hasher, mut bytes) = (Sha256::new(), Vec::new());
    for tensor in of_files(&files, &layouts(&config)) {
        tensor.slices(|slice| {
            to_bytes(slice, kind, &mut bytes);
            hasher.update(&bytes);
            Ok(())
        })?;
    }
    Ok(hex(hasher))
}

/// Fills flat tensors from one file, which must hold exactly the parameters of these layouts.
pub fn read_flats(path: &Path, layouts: &[Layout], flats: &[Tensor]) -> Result<()> {
    let files = TensorFiles::open(vec![path.to_path_buf()])?;
    files.check(path, &Expected { layouts, ..Expected::default() })?;
    files.fill(layouts, &Solo { device: Device::Cpu }, flats)
}

/// The network in the bytes of one file; `path` names it in errors. Allocates nothing before the file is checked.
pub fn model_of(path: &Path, file: &[u8], config: Config, (kind, device): (Kind, Device)) -> Result<Model> {
    let layouts = layouts(&config);
    let files = TensorFiles::of_bytes(path, file)?;
    files.check(path, &Expected { layouts: &layouts, ..Expected::default() })?;
    let model = Model::empty(config, kind, device);
    files.fill(&layouts, &Solo { device }, model.units.whole()?)?;
    Ok(model)
}

/// Writes a whole Hugging Face folder: configuration, weights, and the tokenizer files of `source` (another model folder),
/// if any.
pub fn save_pretrained(model: &Model, dir: &Path, source: Option<&Path>, kind: Kind) -> Result<()> {
    in_new_folder(dir, |staged| write_folder(&model.config, of_model(model)?, (staged, source), kind))
}

/// Writes another Hugging Face folder in the given type into an existing folder.
pub fn convert(source: &Path, dir: &Path, kind: Kind) -> Result<()> {
    let (config, files) = open(source)?;
    write_folder(&config, of_files(&files, &layouts(&config)), (dir, Some(source)), kind)
}

/// [`save_pretrained`] for tensors that need not be in memory: into the existing folder `dir`, with the tokenizer files of
/// `source` and every key of its `config.json`.
pub fn write_folder(
    config: &Config,
    tensors: Vec<Outgoing>,
    (dir, source): (&Path, Option<&Path>),
    kind: Kind,
) -> Result<()> {
    let eos = source.map_or(Ok(Vec::new()), |source| copy_files(source, dir))?;
    let original = source.map_or(Ok(None), |source| read_object(&source.join("config.json")))?;
    write_json(&dir.join("config.json"), &config.to_json_like(original.unwrap_or_default(), &eos, kind)?)?;
    config.vision.as_ref().map_or(Ok(()), |vision| write_processor(vision, dir))?;
    write_weights(tensors, dir, kind, FILE_BYTES)
}

/// Writes config.json and the safetensors of a model into an existing folder.
pub fn write(model: &Model, dir: &Path, eos: &[u32], kind: Kind) -> Result<()> {
    write_json(&dir.join("config.json"), &model.config.to_json(eos, kind)?)?;
    model.config.vision.as_ref().map_or(Ok(()), |vision| write_processor(vision, dir))?;
    write_weights(of_model(model)?, dir, kind, FILE_BYTES)
}

/// Writes how a model's images become patches, with the limits that it was trained with.
pub fn write_processor(vision: &VisionConfig, dir: &Path) -> Result<()> {
    write_whole(&dir.join(PROCESSOR), vision.processor.to_json()? + "\n")
}

/// Writes tensors as one file, or as several of at most `limit` bytes (but never less than one tensor).
fn write_weights(tensors: Vec<Outgoing>, dir: &Path, kind: Kind, limit: usize) -> Result<()> {
    let mut files: Vec<Vec<Outgoing>> = vec![Vec::new()];
    let (mut total, mut filled) = (0, 0);
    for tensor in tensors {
        let bytes = tensor.numel() as usize * kind.elt_size_in_bytes();
        if filled > 0 && filled + bytes > limit {
            files.push(Vec::new());
            filled = 0;
        }
        (total, filled) = (total + bytes, filled + bytes);
        files.last_mut().context("there is a first file")?.push(tensor);
    }
    let count = files.len();
    let mut weight_map = serde_json::Map::new();
    for (number, tensors) in files.into_iter().enumerate() {
        let file = match count {
            1 => ONE_FILE.to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        weight_map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), Value::from(file.as_str()))));
        write_file(&dir.join(&file), tensors, kind)?;
    }
    if count > 1 {
        write_json(&dir.join(INDEX), &json!({ "metadata": { "total_size": total }, "weight_map": weight_map }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;

    fn saved(limit: usize) -> (tempfile::TempDir, Model) {
        let dir = tempfile::tempdir().expect("a folder");
        let config = Config::shape("tiny").expect("tiny");
        tch::manual_seed(7);
        let model = Model::empty(config.clone(), Kind::Float, Device::Cpu);
        model.units.held().iter().for_each(|flat| drop(flat.shallow_clone().normal_(0.0, 0.2)));
        write_json(&dir.path().join("config.json"), &config.to_json(&[], Kind::Float).expect("json")).expect("written");
        write_weights(of_model(&model).expect("whole"), dir.path(), Kind::Float, limit).expect("written");
        (dir, model)
    }

    fn refusal(dir: &Path) -> String {
        let error = load(dir, Kind::Float, Device::Cpu).expect_err("refused");
        assert!(error.downcast_ref::<InputError>().is_some(), "{error:#}");
        format!("{error:#}")
    }

    #[test]
    fn one_file_and_many_load_as_saved() {
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
    fn wrong_tensors_are_refused_with_file_name_and_shapes() {
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
