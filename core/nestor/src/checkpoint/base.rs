//! The start model of a policy with adapters. Its weights are frozen, so a checkpoint names them in place of holding them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::files::{self, SMALL};
use serde::{Deserialize, Serialize};

use crate::files::write_json;
use crate::input_error;
use crate::model::hub::{self, Snapshot};
use crate::model::stored::TensorFiles;
use crate::model::{kind, weights};
use crate::recipe::Dtype;

/// The file of a checkpoint that names the start model.
const FILE: &str = "base_model.json";

/// The start model of a policy with adapters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Its folder, or its id on the Hub.
    pub model: String,
    /// The commit on the Hub.
    pub revision: Option<String>,
    /// The compute type, to which the run rounds its weights.
    pub dtype: Dtype,
    /// [`weights::fingerprint`] of its weights in that type.
    pub sha256: String,
}

impl Base {
    /// The model in a folder, which may be a snapshot of the Hub's cache.
    pub fn new(model_files: &Path, dtype: Dtype, sha256: &str) -> Result<Self> {
        let (model, revision) = named(model_files)?;
        Ok(Self { model, revision, dtype, sha256: sha256.into() })
    }

    pub(super) fn write(&self, checkpoint: &Path) -> Result<()> {
        write_json(&checkpoint.join(FILE), &serde_json::to_value(self)?)
    }

    /// The start model that a checkpoint names; none where the checkpoint holds all weights.
    pub(super) fn read(checkpoint: &Path) -> Result<Option<Self>> {
        let path = checkpoint.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text = files::read_to_string(&path, SMALL).with_context(|| format!("reading {}", path.display()))?;
        Ok(Some(serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?))
    }

    /// Opens the weights, which must be those that the adapters were trained with. `checkpoint` has the adapters. A model that
    /// its run made is found beside it, wherever the run was moved.
    pub(super) fn open(&self, checkpoint: &Path) -> Result<TensorFiles<'static>> {
        let folder = self.folder(checkpoint)?;
        let named = |error: anyhow::Error| {
            input_error!(
                "{} has adapters to the model {}, which cannot be read: {error:#}; put it back, or make a link to it there",
                checkpoint.display(),
                folder.display()
            )
        };
        let (_, files) = weights::open(&folder).map_err(named)?;
        if weights::fingerprint(&folder, kind(self.dtype)).map_err(named)? != self.sha256 {
            return Err(input_error!(
                "{} has adapters to other weights than those of {}; put the model back that the run began with",
                checkpoint.display(),
                folder.display()
            ));
        }
        Ok(files)
    }

    /// The folder of the weights.
    pub(super) fn folder(&self, checkpoint: &Path) -> Result<PathBuf> {
        let run = std::path::absolute(checkpoint)?.parent().and_then(Path::parent).map(|run| run.join("model"));
        if let Some(made) = run.filter(|made| Path::new(&self.model).file_name() == made.file_name() && made.exists()) {
            return Ok(made);
        }
        let name = self.revision.as_ref().map_or(self.model.clone(), |revision| format!("{}@{revision}", self.model));
        hub::folder(Path::new(&name))
    }
}

/// The name by which the model in a folder is found from anywhere: a Hub id and its commit, or the absolute folder.
pub(super) fn named(model_files: &Path) -> Result<(String, Option<String>)> {
    if let Some(Snapshot { id, revision }) = Snapshot::of(model_files) {
        return Ok((id, Some(revision)));
    }
    let folder = std::path::absolute(model_files).with_context(|| format!("finding {}", model_files.display()))?;
    Ok((folder.to_string_lossy().into_owned(), None))
}
