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
