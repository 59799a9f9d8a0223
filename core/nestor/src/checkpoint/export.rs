//! Loads the policy or critic of a checkpoint as a model, or exports it as a Hugging Face folder, or its adapters as a
//! peft folder. One process suffices, whatever number of ranks wrote the checkpoint.

use std::path::Path;

use anyhow::{Context, Result};
use tch::{Device, Kind};

use super::manifest::{MANIFEST, Manifest, verify};
use super::{ADAPTER, ADAPTER_CONFIG, CRITIC, POLICY, is_checkpoint};
use crate::dist::Solo;
use crate::files::read_object;
use crate::input_error;
use crate::model::config::Output;
use crate::model::stored::{Expected, TensorFiles, of_files, write_file};
use crate::model::{Config, Model, qwen2, weights};
use crate::shard::{Adapters, Layout};

/// The manifest of an undamaged checkpoint.
fn undamaged(checkpoint: &Path) -> Result<Manifest> {
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

/// Configuration and master weights of the policy or the critic of a checkpoint.
fn network(checkpoint: &Path, output: Output) -> Result<(Config, TensorFiles<'static>)> {
    let manifest = undamaged(checkpoint)?;
    let [master_weights, ..] = match output {
        Output::Tokens => POLICY,
        Output::Value => CRITIC,
    };
    if manifest.set(checkpoint, master_weights).is_empty() {
        return Err(input_error!("{} holds no critic: export its policy", checkpoint.display()));
    }
    let config = Config { output, ..Config::load(checkpoint)? };
    let files = open(&manifest, checkpoint, master_weights, &qwen2::layouts(&config))?;
    Ok((config, files))
}

/// Loads the policy or the critic of a checkpoint. Rounds the float32 master weights to the given type as a run does.
pub fn load_model(checkpoint: &Path, output: Output, kind: Kind, device: Device) -> Result<Model> {
    let (config, files) = network(checkpoint, output)?;
    let model = Model::empty(config, kind, device);
    files.fill(&model.layouts, &Solo { device }, model.units.whole()?)?;
    Ok(model)
}

/// Exports the policy of a checkpoint as a Hugging Face folder in the given type, or its critic as transformers' token
/// classification with one label. Holds one slice of a tensor in memory at a time.
pub fn export(checkpoint: &Path, dir: &Path, output: Output, kind: Kind) -> Result<()> {
    let (config, files) = network(checkpoint, output)?;
    let tensors = of_files(&files, &qwen2::layouts(&config));
    weights::save_tensors(&config, tensors, (dir, Some(checkpoint)), kind)
}

/// Exports the adapters of a checkpoint as a peft folder.
pub fn export_adapter(checkpoint: &Path, dir: &Path) -> Result<()> {
    let manifest = undamaged(checkpoint)?;
    if manifest.set(checkpoint, ADAPTER).is_empty() {
        return Err(input_error!(
            "{} holds no adapter, since its run trained all weights: export its policy",
            checkpoint.display()
        ));
    }
    let settings = checkpoint.join(ADAPTER_CONFIG);
    let rank = read_object(&settings)?.and_then(|object| object.get("r")?.as_i64());
    let rank = rank.with_context(|| format!("{}: has no rank", settings.display()))?;
    let layouts = Adapters::layouts_of(&qwen2::layouts(&Config::load(checkpoint)?)[1..], rank);
    let files = open(&manifest, checkpoint, ADAPTER, &layouts)?;
    weights::in_new_folder(dir, |staged| {
        write_file(&staged.join(format!("{ADAPTER}.safetensors")), of_files(&files, &layouts), Kind::Float)?;
        let copy = staged.join(ADAPTER_CONFIG);
        std::fs::copy(&settings, &copy).with_context(|| format!("writing {}", copy.display()))?;
        Ok(())
    })
}
