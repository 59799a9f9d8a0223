//! Helpers of several tests.

#![allow(dead_code)] // no test needs all of it

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nestor_host::{Plugins, SharedEnv};
use nestor_model::model::{Config, Model};
use nestor_recipe::{Isolation, PluginChoice};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tch::{Device, Kind, Tensor};

/// Seeds libtorch's generator before a test computes.
pub fn seed(number: i64) {
    nestor_torch::choose_math();
    tch::manual_seed(number);
}

/// A network of this known shape's architecture, small enough for a test.
pub fn small(shape: &str) -> Config {
    nestor_torch::choose_math();
    Config {
        vocab_size: 61,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        initializer_range: 0.2,
        ..Config::shape(shape).expect("a known shape")
    }
}

/// A directory with the SDK's example plugins (`toy`, `faulty`).
pub fn example_plugins() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let examples = build(&["--examples"]).join("examples");
        // Cargo's own folder keeps older builds beside the newest. A rename is atomic for tests that run concurrently.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
        std::fs::create_dir_all(&dir).expect("a directory for plugins");
        for name in ["libtoy.so", "libfaulty.so"] {
            let copy = tempfile::NamedTempFile::new_in(&dir).expect("a file");
            std::fs::copy(examples.join(name), copy.path()).expect("a copy");
            copy.persist(dir.join(name)).expect("its name");
        }
        dir
    })
}

/// Builds the workspace, or the targets of it that the arguments name, and returns the folder of built files. `cargo test`
/// builds the examples and libraries of tested packages only, so a test of core calls cargo itself; cargo's lock is free by
/// then. Always the whole workspace: for a single package cargo would compile dependencies again, with other features.
pub fn build(targets: &[&str]) -> &'static Path {
    static PROFILE: OnceLock<PathBuf> = OnceLock::new();
    let profile = PROFILE.get_or_init(|| {
        let test = std::env::current_exe().expect("the path of this test");
        test.ancestors().nth(2).expect("the folder above deps").into()
    });
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo
        .args(["build", "--quiet", "--workspace"])
        .args(targets)
        .arg("--manifest-path")
        .arg(workspace().join("Cargo.toml"));
    cargo.arg("--target-dir").arg(profile.parent().expect("a directory"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // Cargo sets them for this test; a build script that reads one (ring's) would run again, and its dependants compile again.
    let of_this_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR";
    for (name, _) in std::env::vars().filter(|(name, _)| of_this_package(name)) {
        cargo.env_remove(name);
    }
    let out = cargo.output().expect("cargo");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    profile
}

/// The repository's root.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The names of the folders in plugins/estimators or plugins/environments, which are the ids of their plugins; none in a
/// checkout without them.
pub fn bundled_plugins(folder: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(workspace().join("plugins").join(folder)) else { return Vec::new() };
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// The names of the folders in plugins that hold one environment each, for other people's environments.
pub fn bridges() -> Vec<String> {
    let is_there = |name: &&str| workspace().join("plugins").join(name).exists();
    ["harness", "mcp", "openenv", "python"].into_iter().filter(is_there).map(str::to_string).collect()
}

/// The Rust files below a folder.
pub fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let all = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    all.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

/// The SDK's toy environment; its own limit of steps is 9.
pub fn toy() -> SharedEnv {
    let file = example_plugins().join("libtoy.so");
    let choice = PluginChoice::new(file.display().to_string(), json!({ "max_steps": 9 }));
    let choice = PluginChoice { isolate: Some(Isolation::None), ..choice };
    Plugins::default().environment(&choice).expect("the toy environment")
}

/// A tiny network with large random weights, so that its log-probs differ between contexts.
pub fn model(vocab_size: usize) -> Model {
    let config = Config {
        vocab_size: vocab_size as i64,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 512,
        rope_theta: 10_000.0,
        ..Config::shape("tiny").expect("a shape")
    };
    nestor_torch::choose_math();
    let model = Model::empty(config, Kind::Float, Device::Cpu);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    model.units.held().iter().for_each(|flat| draw(flat, 0.2, &mut rng));
    model
}

/// Fills a tensor with random numbers of this standard deviation. libtorch's generator belongs to all tests of the process at
/// once, so two networks drawn from it would differ.
pub fn draw(flat: &Tensor, std: f32, rng: &mut ChaCha8Rng) {
    let most = std * 3f32.sqrt();
    let numbers: Vec<f32> = (0..flat.numel()).map(|_| rng.random_range(-most..most)).collect();
    flat.shallow_clone().copy_(&Tensor::from_slice(&numbers).view_as(flat));
}
