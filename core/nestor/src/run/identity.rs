//! Comparison of ranks when they meet: recipe, program and plugins must be the same at all of them.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::record::{PluginFiles, snapshots};
use crate::data::PluginFile;
use crate::files::sum;
use crate::input_error;
use crate::model::hub::Snapshot;
use crate::ranks::{Comm, agree, from_root};
use crate::recipe::{Recipe, changes, load_resolved};

/// Everything that must be equal at all ranks.
#[derive(Serialize, Deserialize)]
struct Identity {
    /// The resolved recipe.
    recipe: String,
    /// SHA-256 of the program.
    program: String,
    plugins: Vec<PluginFile>,
    /// Models from the Hugging Face cache.
    models: Vec<Snapshot>,
}

/// Refuses ranks that were not started alike; the message names rank and difference. All ranks call it together.
pub fn compare(comm: &dyn Comm, recipe: &Recipe, plugins: PluginFiles) -> Result<()> {
    if comm.world() == 1 {
        return Ok(());
    }
    let own = Identity::of(recipe, plugins);
    let first: Identity = from_root(comm, || Identity::of(recipe, plugins))?;
    agree(comm, own.and_then(|own| own.check(&first, recipe, comm.rank())))
}

impl Identity {
    fn of(recipe: &Recipe, plugins: PluginFiles) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let (program, models) = (sum(&program)?.sha256, snapshots(recipe));
        Ok(Self { recipe: recipe.to_yaml()?, program, plugins: plugins.to_vec(), models })
    }

    fn check(&self, first: &Self, recipe: &Recipe, rank: usize) -> Result<()> {
        let mut differences = Vec::new();
        if self.recipe != first.recipe {
            let of_first = load_resolved("the recipe of rank 0", &first.recipe)?;
            differences.extend(changes(&of_first, recipe)?.iter().map(ToString::to_string));
        }
        if self.program != first.program {
            differences.push(format!("program: sha256 {:.12} -> {:.12}", first.program, self.program));
        }
        if self.models != first.models {
            let shown = |models: &[Snapshot]| models.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            differences.push(format!("models: {} -> {}", shown(&first.models), shown(&self.models)));
        }
        // Machines may have their plugins in different folders.
        for (theirs, own) in first.plugins.iter().zip(&self.plugins) {
            if (&theirs.id, &theirs.sha256) != (&own.id, &own.sha256) {
                let shown = |file: &PluginFile| format!("{} (sha256 {:.12})", file.path.display(), file.sha256);
                differences.push(format!("plugin {}: {} -> {}", own.id, shown(theirs), shown(own)));
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(input_error!(
            "rank {rank} was started otherwise than rank 0: {}; start all ranks with the same recipe, program and plugins",
            differences.join(", ")
        ))
    }
}
