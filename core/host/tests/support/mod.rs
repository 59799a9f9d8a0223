//! Files of plugins, built.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Builds the workspace's libraries and examples, and returns the folder of built files. `cargo test` builds those of tested
/// packages only. Always the whole workspace: for single packages cargo would compile dependencies again, with other
/// features.
pub fn build() -> PathBuf {
    let own = std::env::current_exe().expect("the test's file");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST").to_path_buf();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--workspace", "--lib", "--examples", "--manifest-path"]);
    cargo.arg(workspace().join("Cargo.toml")).arg("--target-dir").arg(profile.parent().expect("target"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let out = cargo.output().expect("cargo");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    profile
}
