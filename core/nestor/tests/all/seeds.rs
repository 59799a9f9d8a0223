//! Replays the seeds of the fuzz targets for recipes and model files (`tests/fuzz`), and every recipe of the project.

#[path = "../../../../tests/fuzz/harness/core.rs"]
mod harness;
#[path = "../../../../tests/fuzz/harness/seeds.rs"]
mod kept;
use crate::support;
use std::path::{Path, PathBuf};

use self::kept::seeds;

/// All files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn replay(inputs: Vec<(String, Vec<u8>)>, target: fn(&[u8])) {
    assert!(inputs.len() > 20, "{}", inputs.len());
    for (name, bytes) in inputs {
        println!("{name}"); // shown where the next line panics
        target(&bytes);
    }
}

#[test]
fn seeds_of_the_recipe_reader() {
    let recipes = files(&support::workspace().join("recipes"));
    let recipes = recipes.iter().map(|path| (path.display().to_string(), std::fs::read(path).expect("a recipe")));
    replay(seeds(support::workspace(), "recipe").into_iter().chain(recipes).collect(), harness::recipe);
}

#[test]
fn seeds_of_the_safetensors_reader() {
    replay(seeds(support::workspace(), "safetensors"), harness::safetensors);
}
