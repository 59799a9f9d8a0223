//! Adapters for a model that is loaded already: those of a run, or of a folder that peft wrote.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use super::base::Base;
use super::export::{adapters, lora, undamaged};
use super::source::Source;
use super::{ADAPTER, ADAPTER_CONFIG, is_checkpoint};
use crate::files::read_object;
use crate::input_error;
use crate::model::stored::{Expected, TensorFiles};
use crate::model::{Config, hub, kind, unit_weights, weights};
use crate::ranks::Solo;
use crate::recipe::Dtype;
use crate::shard::Adapters;
use crate::terminal;

/// Settings of peft that change what adapters compute, each with the values that leave it as it is here.
const PLAIN: [(&str, &[&str]); 9] = [
    ("use_dora", &["false"]),
    ("use_rslora", &["false"]),
    ("fan_in_fan_out", &["false"]),
    ("bias", &["\"none\""]),
    ("rank_pattern", &["{}"]),
    ("alpha_pattern", &["{}"]),
    ("modules_to_save", &["[]"]),
    ("layers_to_transform", &["[]"]),
    ("lora_bias", &["false"]),
];

/// The adapters that a name means, for the model of `base`: a run or a checkpoint that trained adapters, or a folder of peft.
///
/// # Errors
/// If it holds no adapters, or those of another model.
pub fn load_adapters(name: &Path, base: &Source, config: &Config, device: Device) -> Result<Adapters> {
    let folder = hub::folder(name)?;
    if !is_checkpoint(&folder) && folder.join(ADAPTER_CONFIG).exists() {
        check_named_base(&folder, base)?;
        return of_peft(&folder, config, device);
    }
    let Source::Checkpoint(checkpoint) = Source::find(name)? else {
        return Err(input_error!(
            "{} has weights of its own and no adapters; name a folder that peft wrote, or a run with `model.lora`",
            name.display()
        ));
    };
    let manifest = undamaged(&checkpoint)?;
    let Some(own) = Base::read(&checkpoint)? else {
        return Err(input_error!(
            "{} trained all weights and has no adapters; serve it by itself",
            checkpoint.display()
        ));
    };
    let weights = weights_of(base)?;
    if weights::fingerprint(&weights, kind(own.dtype))? != own.sha256 {
        return Err(of_another_model(&checkpoint, &own.model, &weights));
    }
    adapters(&manifest, &checkpoint, config, device)?
        .ok_or_else(|| input_error!("{} has no adapters", checkpoint.display()))
}

/// The folder of the frozen weights that a model computes with.
fn weights_of(base: &Source) -> Result<PathBuf> {
    match base {
        Source::Folder(folder) => Ok(folder.clone()),
        Source::Checkpoint(checkpoint) => match Base::read(checkpoint)? {
            Some(base) => base.folder(checkpoint),
            None => Err(input_error!(
                "{} trained all weights, so that no other run's adapters belong to it; serve the model that the adapters were \
                 trained with",
                checkpoint.display()
            )),
        },
    }
}

fn of_another_model(adapters: &Path, theirs: &str, ours: &Path) -> anyhow::Error {
    input_error!(
        "{} has adapters of the model {theirs}, whose weights are not those of {}; one server has one model and adapters of it: \
         serve the other one by itself, on another port",
        adapters.display(),
        ours.display()
    )
}

/// Refuses a peft folder whose base model is here and another one.
fn check_named_base(folder: &Path, base: &Source) -> Result<()> {
    let weights = weights_of(base)?;
    let settings = read_object(&folder.join(ADAPTER_CONFIG))?.unwrap_or_default();
    let text = |key: &str| settings.get(key).and_then(Value::as_str);
    let name = text("base_model_name_or_path").unwrap_or_default();
    let whole = text("revision").map_or(name.to_string(), |revision| format!("{name}@{revision}"));
    let theirs = hub::folder(Path::new(&whole)).ok().filter(|folder| folder.join("config.json").exists());
    let Some(theirs) = theirs else {
        terminal::warn(&format!(
            "warning: {} names its base model {name}, which is not here, so nothing checks that its adapters belong to {}",
            folder.display(),
            weights.display()
        ));
        return Ok(());
    };
    let same = theirs.canonicalize().ok() == weights.canonicalize().ok();
    let sum = |folder: &Path| weights::fingerprint(folder, kind(Dtype::Float32));
    if !same && sum(&theirs)? != sum(&weights)? {
        return Err(of_another_model(folder, name, &weights));
    }
    Ok(())
}

fn of_peft(folder: &Path, config: &Config, device: Device) -> Result<Adapters> {
    let settings = read_object(&folder.join(ADAPTER_CONFIG))?.unwrap_or_default();
    check_plain(folder, &settings)?;
    let settings = lora(folder).map_err(|error| input_error!("{error:#}"))?;
    let blocks = unit_weights::block_layouts(config);
    let layouts = Adapters::layouts_of(&blocks, &settings);
    let files = TensorFiles::open(vec![folder.join(format!("{ADAPTER}.safetensors"))])?;
    files.check(folder, &Expected { layouts: &layouts, ..Expected::default() })?;
    let whole: Vec<Tensor> = layouts.iter().map(|l| Tensor::zeros([l.numel()], (Kind::Float, device))).collect();
    files.fill(&layouts, &Solo { device }, &whole)?;
    Ok(Adapters::of(&blocks, whole, &settings))
}

/// Refuses settings that would change what the adapters compute.
fn check_plain(folder: &Path, settings: &Map<String, Value>) -> Result<()> {
    let path = folder.join(ADAPTER_CONFIG);
    for (key, plain) in PLAIN {
        let value = settings.get(key).filter(|value| !value.is_null());
        if let Some(value) = value.filter(|value| !plain.contains(&value.to_string().as_str())) {
            return Err(input_error!("{}: `{key}`: {value} is not supported", path.display()));
        }
    }
    match settings.get("target_modules") {
        Some(Value::Array(_)) | None => Ok(()),
        Some(other) => {
            Err(input_error!("{}: `target_modules` is {other}; only a list of projections is read", path.display()))
        }
    }
}
