//! Loads the policy or critic of a checkpoint as a model, or exports it as a Hugging Face folder, or its adapters as a
//! peft folder. One process suffices, whatever number of ranks wrote the checkpoint.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::base::Base;
use super::manifest::{MANIFEST, Manifest, verify};
use super::{ADAPTER, ADAPTER_CONFIG, CRITIC, NetworkSets, POLICY, is_checkpoint};
use crate::files::{read_object, write_json};
use crate::input_error;
use crate::model::config::Output;
use crate::model::stored::{Expected, TensorFiles, of_files, write_file};
use crate::model::{Config, Model, kind, unit_weights, weights};
use crate::ranks::Solo;
use crate::recipe::Lora;
use crate::shard::{Adapters, Layout, projections};

/// The manifest of an undamaged checkpoint.
pub(super) fn undamaged(checkpoint: &Path) -> Result<Manifest> {
    if !is_checkpoint(checkpoint) {
        return Err(input_error!(
            "{} is no checkpoint (it has no {MANIFEST}): name a directory like RUN/checkpoints/iteration-000100",
            checkpoint.display()
        ));
    }
    verify(checkpoint)
}

/// Opens the files of a set of tensors and checks that they hold these parameters.
pub(super) fn open(manifest: &Manifest, dir: &Path, name: &str, layouts: &[Layout]) -> Result<TensorFiles<'static>> {
    let files = TensorFiles::open(manifest.set(dir, name))?;
    files
        .check(dir, &Expected { layouts, kind: Some(Kind::Float), tied: false })
        .with_context(|| format!("{} is damaged, or its files belong to two models", dir.display()))?;
    Ok(files)
}

/// The policy or the critic of a checkpoint.
struct Stored {
    config: Config,
    /// Its master weights; of a policy with adapters the frozen ones.
    weights: TensorFiles<'static>,
    /// The type that the frozen weights have in the run.
    frozen: Option<Kind>,
    adapters: Option<Adapters>,
}

impl Stored {
    fn open(checkpoint: &Path, output: Output, device: Device) -> Result<Self> {
        let manifest = undamaged(checkpoint)?;
        let NetworkSets { master_weights, .. } = match output {
            Output::Tokens => POLICY,
            Output::Value => CRITIC,
        };
        let config = Config { output, ..Config::load(checkpoint)? };
        let base = if output == Output::Tokens { Base::read(checkpoint)? } else { None };
        let (weights, frozen) = match &base {
            Some(base) => (base.open(checkpoint)?, Some(kind(base.dtype))),
            None if manifest.set(checkpoint, master_weights).is_empty() => {
                return Err(input_error!("{} holds no critic: export its policy", checkpoint.display()));
            }
            None => (open(&manifest, checkpoint, master_weights, &unit_weights::layouts(&config))?, None),
        };
        let adapters = match output {
            Output::Tokens => adapters(&manifest, checkpoint, &config, device)?,
            Output::Value => None,
        };
        Ok(Self { config, weights, frozen, adapters })
    }
}

/// The adapters of a checkpoint's policy, if it has any.
pub(super) fn adapters(
    manifest: &Manifest,
    checkpoint: &Path,
    config: &Config,
    device: Device,
) -> Result<Option<Adapters>> {
    if manifest.set(checkpoint, ADAPTER).is_empty() {
        return Ok(None);
    }
    let settings = lora(checkpoint)?;
    let blocks = unit_weights::block_layouts(config);
    let layouts = Adapters::layouts_of(&blocks, &settings);
    let whole: Vec<Tensor> = layouts.iter().map(|l| Tensor::zeros([l.numel()], (Kind::Float, device))).collect();
    open(manifest, checkpoint, ADAPTER, &layouts)?.fill(&layouts, &Solo { device }, &whole)?;
    Ok(Some(Adapters::of(&blocks, whole, &settings)))
}

/// Rank, alpha and projections of a checkpoint's adapters.
pub(super) fn lora(checkpoint: &Path) -> Result<Lora> {
    let path = checkpoint.join(ADAPTER_CONFIG);
    let settings = read_object(&path)?.unwrap_or_default();
    let rank = settings.get("r").and_then(serde_json::Value::as_i64);
    let alpha = settings.get("lora_alpha").and_then(serde_json::Value::as_f64);
    let targets = settings.get("target_modules").cloned().map(serde_json::from_value);
    let target_modules = targets.transpose().with_context(|| format!("{}: target_modules", path.display()))?;
    let both = rank.zip(alpha).map(|(rank, alpha)| Lora { target_modules, ..Lora::of_all(rank, alpha) });
    both.with_context(|| format!("{}: has no rank or no alpha", path.display()))
}

/// Loads the policy or the critic of a checkpoint. Rounds the float32 master weights to the given type as a run does, and
/// keeps a policy's adapters beside them.
pub fn load_model(checkpoint: &Path, output: Output, kind: Kind, device: Device) -> Result<Model> {
    let Stored { config, weights, adapters, .. } = Stored::open(checkpoint, output, device)?;
    let model = Model { adapters, ..Model::empty(config, kind, device) };
    weights.fill(&model.layouts, &Solo { device }, model.units.whole()?)?;
    Ok(model)
}

/// Exports the policy of a checkpoint as a Hugging Face folder in the given type, or its critic as transformers' token
/// classification with one label, into an existing one. Merges adapters into the weights, in float32. Holds one tensor in
/// memory at a time.
pub fn export(checkpoint: &Path, dir: &Path, output: Output, kind: Kind) -> Result<()> {
    let Stored { config, weights, frozen, adapters } = Stored::open(checkpoint, output, Device::Cpu)?;
    if output == Output::Value && config.vision.is_some() {
        return Err(input_error!(
            "{}: transformers has no critic with a vision tower, so there is no form to export it in: export the policy",
            checkpoint.display()
        ));
    }
    let layouts = unit_weights::layouts(&config);
    let mut tensors = of_files(&weights, &layouts);
    if let Some(kind) = frozen {
        tensors = tensors.into_iter().map(|tensor| tensor.rounded(kind)).collect();
    }
    if let Some(adapters) = adapters {
        let of_block = |block| {
            let all = projections(&layouts[1 + block]).map(|w| w.name.clone()).zip(adapters.of_block(block));
            all.filter(|(_, one)| !one.is_none())
        };
        let mut changes: HashMap<String, _> = (0..config.num_hidden_layers as usize).flat_map(of_block).collect();
        let merged = tensors.into_iter().map(|tensor| match changes.remove(&tensor.name) {
            Some(change) => tensor.merge(change, adapters.scale()),
            None => tensor,
        });
        tensors = merged.collect();
    }
    weights::write_folder(&config, tensors, (dir, Some(checkpoint)), kind)
}

/// Exports the adapters of a checkpoint as a peft folder, into an existing one.
pub fn export_adapter(checkpoint: &Path, dir: &Path) -> Result<()> {
    let manifest = undamaged(checkpoint)?;
    if manifest.set(checkpoint, ADAPTER).is_empty() {
        return Err(input_error!(
            "{} holds no adapter, since its run trained all weights: export its policy",
            checkpoint.display()
        ));
    }
    let config = Config::load(checkpoint)?;
    let mut layouts = Adapters::layouts_of(&unit_weights::block_layouts(&config), &lora(checkpoint)?);
    let mut files = open(&manifest, checkpoint, ADAPTER, &layouts)?;
    let mut settings = read_object(&checkpoint.join(ADAPTER_CONFIG))?.unwrap_or_default();
    if config.vision.is_some() {
        // peft knows the modules of transformers, where the language model is one part, and the tower has layers of the
        // same names.
        let module = |name: &str| name.replacen(".model.layers.", ".model.language_model.layers.", 1);
        files = files.renamed(|name| Some(module(name)));
        layouts.iter_mut().flat_map(|layout| &mut layout.params).for_each(|param| param.name = module(&param.name));
        let targets = settings.get("target_modules").and_then(Value::as_array).into_iter().flatten();
        let targets: Vec<&str> = targets.filter_map(Value::as_str).collect();
        let pattern = format!(r".*language_model\.layers\..*\.({})", targets.join("|"));
        settings.insert("target_modules".into(), pattern.into());
    }
    write_file(&dir.join(format!("{ADAPTER}.safetensors")), of_files(&files, &layouts), Kind::Float)?;
    write_json(&dir.join(ADAPTER_CONFIG), &Value::Object(settings))
}
