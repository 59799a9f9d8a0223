//! All keys, and all recipes of the project.

use std::path::Path;

use anyhow::Result;

use super::{Folder, WHOLE};
use crate::{keys, load};

#[test]
fn a_standard_run_has_at_most_65_keys() -> Result<()> {
    // Standard: a pretrained model and no warm start, everything else written out.
    let folder = Folder::default();
    let sets = ["model={path: model}", "warm_start=null", "estimator.config={}", "env.config={}"];
    let recipe = folder.load(&folder.write("r.yaml", WHOLE), &sets)?;
    fn leaves(value: &serde_json::Value) -> usize {
        match value {
            serde_json::Value::Object(map) if !map.is_empty() => map.values().map(leaves).sum(),
            _ => 1,
        }
    }
    let count = leaves(&serde_json::to_value(&recipe)?);
    assert!(count <= 65, "{count} keys");
    Ok(())
}

#[test]
fn every_key_has_a_meaning() {
    let bare: Vec<String> = keys().into_iter().filter(|key| key.doc.is_empty()).map(|key| key.path).collect();
    assert!(bare.is_empty(), "keys without a doc comment: {bare:?}");
}

#[test]
fn every_recipe_of_the_project_loads() -> Result<()> {
    fn visit(folder: &Path) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                // Workloads of `nestor bench` and sweeps are no recipes.
                if !(path.ends_with("bench") || path.ends_with("sweeps")) {
                    visit(&path)?;
                }
            } else if path.extension().is_some_and(|e| e == "yaml") {
                load(&path, &[])?;
                // A warm start alone, as the documentation and `nestor sweep` run it.
                load(&path, &["iterations=0".into(), "eval.every=0".into()])?;
                let text = std::fs::read_to_string(&path)?;
                assert!(text.lines().take(3).all(|line| line.starts_with('#')), "{} has no header", path.display());
            }
        }
        Ok(())
    }
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    if recipes.is_dir() { visit(&recipes) } else { Ok(()) }
}
