//! What several tests need.

#![allow(dead_code)] // no test needs all of it

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A directory with the SDK's example plugins (`toy`, `faulty`).
pub fn example_plugins() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let examples = build(&["--package", "nestor-plugin", "--examples"]).join("examples");
        // Cargo's own folder keeps older builds beside the newest. A rename is whole for tests that run at once.
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

/// Builds what the arguments name where it is not fresh, and returns the folder of built files. `cargo test` builds the
/// examples and libraries of tested packages only, so a test of core asks cargo itself; cargo's lock is free by then.
pub fn build(what: &[&str]) -> &'static Path {
    let profile = Path::new(env!("CARGO_BIN_EXE_nestor")).parent().expect("a directory");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet"]).args(what).arg("--manifest-path").arg(workspace().join("Cargo.toml"));
    cargo.arg("--target-dir").arg(profile.parent().expect("a directory"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let out = cargo.output().expect("cargo");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    profile
}

/// The repository's root.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a directory")
}
