//! `recipe.yaml` in the run directory: the resolved recipe. Its head names the program, the plugins that run it, and the
//! commits of models from the Hugging Face cache.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use nestor_plugin::files::{self, SMALL};

use super::directory::RECIPE;
use crate::agent::Environments;
use crate::data::PluginFile;
use crate::files::write_whole;
use crate::model::hub::{self, Snapshot};
use crate::recipe::{Recipe, SAVED};
use crate::version::VERSION_AND_COMMIT;

/// The plugins of a run.
#[derive(Clone, Copy)]
pub struct PluginFiles<'a> {
    pub environments: &'a Environments,
    pub estimator: &'a PluginFile,
    pub loss: Option<&'a PluginFile>,
}

impl PluginFiles<'_> {
    /// Owned copies, the environments first.
    pub fn to_vec(self) -> Vec<PluginFile> {
        self.environments.files().into_iter().chain([self.estimator]).chain(self.loss).cloned().collect()
    }
}

/// Writes the recipe that counts from iteration `first` on. An older one that differs stays as `recipe-N.yaml`, N from 1.
pub fn write_recipe(
    dir: &Path,
    recipe: &Recipe,
    (plugins, models): (PluginFiles, &[Snapshot]),
    first: u64,
) -> Result<()> {
    let text = text(recipe, plugins, models)?;
    let path = dir.join(RECIPE);
    if path.exists() {
        let older = files::read_to_string(&path, SMALL).with_context(|| format!("reading {}", path.display()))?;
        // The first line is the iteration.
        if older.split_once('\n').is_some_and(|(_, older)| older == text) {
            return Ok(());
        }
        let kept = (1..).map(|n| dir.join(format!("recipe-{n}.yaml"))).find(|path| !path.exists());
        write_whole(&kept.context("no number is free")?, older)?;
    }
    write_whole(&path, format!("{SAVED}{first} on; all defaults are filled in.\n{text}"))
}

fn text(recipe: &Recipe, plugins: PluginFiles, models: &[Snapshot]) -> Result<String> {
    let mut text = format!("# nestor {VERSION_AND_COMMIT}, torch {}\n", nestor_torch::version());
    let environments = plugins.environments.files().into_iter().map(|file| ("environment", file));
    for (kind, file) in
        environments.chain([("estimator", plugins.estimator)]).chain(plugins.loss.map(|file| ("loss", file)))
    {
        let PluginFile { id, path, sha256, border } = file;
        // A path may hold any character; a comment ends with its line.
        let path = path.to_string_lossy().replace(char::is_control, "?");
        writeln!(text, "# {kind} {id}: {path}, sha256 {sha256}, plugin border {border}")?;
    }
    for model in models {
        writeln!(text, "# model {model}")?;
    }
    Ok(text + &recipe.to_yaml()?)
}

/// The models of a recipe that come from the Hugging Face cache. A name that is found nowhere is none of them: the checks refused it,
/// or the run has its own copy.
pub fn snapshots(recipe: &Recipe) -> Vec<Snapshot> {
    let teacher = recipe.estimator.teacher.as_ref().map(|teacher| &teacher.path);
    let reference = recipe.reference.as_ref().map(|reference| &reference.path);
    let names = recipe.model.path.iter().chain(teacher).chain(reference);
    names.filter_map(|name| Snapshot::of(&hub::folder(name.as_ref()).ok()?)).collect()
}

/// One line for each model that is at another commit than in an earlier life of the run.
pub fn moved(before: &[Snapshot], now: &[Snapshot]) -> Vec<String> {
    let other = |new: &&Snapshot| before.iter().find(|old| old.id == new.id && old.revision != new.revision);
    let line = |new: &Snapshot, old: &Snapshot| {
        format!(
            "model {new}: the run began with revision {}; to keep it, name {}@{} and allow the change",
            old.revision, old.id, old.revision
        )
    };
    now.iter().filter_map(|new| Some(line(new, other(&new)?))).collect()
}

/// One line for each plugin whose file has other contents than that of the same id in an earlier life of the run.
pub fn rebuilt(before: &[PluginFile], now: &[PluginFile]) -> Vec<String> {
    let other = |file: &&PluginFile| before.iter().find(|old| old.id == file.id && old.sha256 != file.sha256);
    let line = |file: &PluginFile, old: &PluginFile| {
        format!(
            "plugin {} is another build than before: {} (sha256 {:.12}), before {} (sha256 {:.12})",
            file.id,
            file.path.display(),
            file.sha256,
            old.path.display(),
            old.sha256
        )
    };
    now.iter().filter_map(|file| Some(line(file, other(&file)?))).collect()
}
