//! Links every binary, test and example of a package so that it finds libtorch by itself. The program's `_exit` comes before
//! that of the C library, also for plugins (core/host/src/leave.rs).

use std::path::Path;

fn main() {
    // Several packages have this build script, so no path is named: cargo runs it again when it or libtorch changes.
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names the package's folder");
    if ["src/main.rs", "src/bin"].iter().any(|programs| Path::new(&package).join(programs).exists()) {
        for name in ["_exit", "_Exit", "quick_exit"] {
            println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={name}");
        }
    }
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names libtorch's library folder");
    // RUNPATH rather than RPATH, so that LD_LIBRARY_PATH wins on a machine with another libtorch.
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{lib}");
}
