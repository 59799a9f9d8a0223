//! `nestor export`: writes a model as a Hugging Face folder or its adapters as a peft folder, with a model card.

mod card;

use std::path::{Path, PathBuf};

use anyhow::Result;
use tch::Kind;

use crate::checkpoint::{self, Source};
use crate::input_error;
use crate::model::config::Output;
use crate::model::new_folder::in_new_folder_or_stop;
use crate::model::weights;

/// The exported part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The policy, with adapters merged.
    Policy,
    Critic,
    /// LoRA's adapters.
    Adapter,
}

/// Options of `nestor export`.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// A model as [`Source::find`] finds it.
    pub model: PathBuf,
    /// The folder to create.
    pub dir: PathBuf,
    pub part: Part,
    /// The stored type of the weights; adapters stay in float32.
    pub kind: Kind,
}

/// Writes the folder, complete or not at all. Returns the folder that the model came from.
pub fn export(options: &ExportOptions) -> Result<PathBuf> {
    let ExportOptions { model, dir, part, kind } = options;
    let source = Source::find(model)?;
    in_new_folder_or_stop(dir, |staged| match &source {
        Source::Checkpoint(checkpoint) => {
            match part {
                Part::Policy => checkpoint::export(checkpoint, staged, Output::Tokens, *kind)?,
                Part::Critic => checkpoint::export(checkpoint, staged, Output::Value, *kind)?,
                Part::Adapter => checkpoint::export_adapter(checkpoint, staged)?,
            }
            card::write(checkpoint, *part, &title(dir), staged)
        }
        Source::Folder(folder) if *part == Part::Policy => weights::convert(folder, staged, *kind),
        Source::Folder(folder) => Err(input_error!(
            "{} is a model folder, which holds neither a critic nor adapters: name a run or a checkpoint",
            folder.display()
        )),
    })?;
    Ok(source.folder().into())
}

/// The name of the folder, as the title of its card.
fn title(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
