//! Replays the kept inputs of the fuzz targets (`core/fuzz/seeds`), with every recipe of the project among them.

#[path = "../fuzz/harness.rs"]
mod harness;
mod support;

use std::path::{Path, PathBuf};

/// All files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn replay(dirs: &[&str], target: fn(&[u8])) -> usize {
    let files: Vec<_> = dirs.iter().flat_map(|dir| files(&support::workspace().join(dir))).collect();
    for file in &files {
        println!("{}", file.display()); // shown where the next line panics
        target(&std::fs::read(file).expect("a seed"));
    }
    files.len()
}

#[test]
fn seeds_of_the_recipe_reader() {
    assert!(replay(&["core/fuzz/seeds/recipe", "recipes"], harness::recipe) > 20);
}

#[test]
fn seeds_of_the_safetensors_reader() {
    assert!(replay(&["core/fuzz/seeds/safetensors"], harness::safetensors) > 20);
}
