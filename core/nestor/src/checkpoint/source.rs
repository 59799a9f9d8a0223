//! A model as commands name it: a run, a checkpoint, a model folder, or a Hub id.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tch::{Device, Kind};

use super::export::load_model;
use super::{CHECKPOINTS, Checkpoints, is_checkpoint};
use crate::input_error;
use crate::model::config::Output;
use crate::model::{Model, hub, weight_files, weights};
use crate::ranks::Solo;
use crate::terminal;

/// Files of which a model folder has one at least.
const MODEL_FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A whole checkpoint.
    Checkpoint(PathBuf),
    /// A Hugging Face folder.
    Folder(PathBuf),
}

impl Source {
    /// Finds the model of this name: a run directory (its newest undamaged checkpoint), a checkpoint, a Hugging Face
    /// folder, or the id of a model in the Hugging Face cache.
    pub fn find(name: &Path) -> Result<Self> {
        let folder = hub::folder(name)?;
        if is_checkpoint(&folder) {
            return Ok(Self::Checkpoint(folder));
        }
        // A tokenizer has a folder of its own at times, and a reader reports what else is missing.
        if MODEL_FILES.iter().any(|file| folder.join(file).exists()) {
            return Ok(Self::Folder(folder));
        }
        let warn = |line: &str| terminal::warn(&format!("warning: {line}"));
        match Checkpoints::new(&folder).newest(&Solo { device: Device::Cpu }, warn)? {
            Some(newest) => Ok(Self::Checkpoint(newest)),
            None => Err(input_error!(
                "{}: neither a run directory with a checkpoint, nor a checkpoint such as RUN/checkpoints/iteration-000100, \
                 nor a Hugging Face folder with config.json, nor a Hub id such as Qwen/Qwen2.5-1.5B-Instruct",
                name.display()
            )),
        }
    }

    /// Finds the model that a recipe names. A folder that is no run and no checkpoint comes back as it is, and its reader reports
    /// what is missing.
    pub fn of_recipe(name: &Path) -> Result<Self> {
        let folder = hub::folder(name)?;
        let made_by_a_run = is_checkpoint(&folder) || folder.join(CHECKPOINTS).is_dir();
        if made_by_a_run { Self::find(name) } else { Ok(Self::Folder(folder)) }
    }

    /// The folder of the configuration and the tokenizer.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Checkpoint(folder) | Self::Folder(folder) => folder,
        }
    }

    /// Loads the policy of the checkpoint, with its adapters, or the model of the folder.
    pub fn load(&self, kind: Kind, device: Device) -> Result<Model> {
        match self {
            Self::Checkpoint(checkpoint) => load_model(checkpoint, Output::Tokens, kind, device),
            Self::Folder(folder) => {
                let model = weights::load(folder, kind, device)?;
                if let Some(warning) = weight_files::warning(folder, model.config.tie_word_embeddings) {
                    terminal::warn(&format!("warning: {warning}"));
                }
                Ok(model)
            }
        }
    }
}
