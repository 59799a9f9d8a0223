//! Links every binary, test and example of this package so that it finds libtorch by itself. The program's `_exit` comes before
//! that of the C library, also for plugins (core/host/src/leave.rs).

fn main() {
    // tests/drivers has this build script too, so no path is named: cargo runs it again when it or libtorch changes.
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    for name in ["_exit", "_Exit", "quick_exit"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={name}");
    }
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names libtorch's library folder");
    // RUNPATH rather than RPATH, so that LD_LIBRARY_PATH wins on a machine with another libtorch.
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{lib}");
}
