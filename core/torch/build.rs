//! Compiles the shim against the headers of the libtorch that torch-sys was built with.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    let lib = PathBuf::from(std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names libtorch's library folder"));
    let include = lib.join("../include");
    // The CUDA and NCCL headers of that torch are packages beside it.
    let packages = lib.canonicalize().expect("libtorch's library folder is there").join("../../nvidia");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        // As libtorch was built: without it some of its classes have another layout.
        .define("NDEBUG", None)
        .includes([include.clone(), include.join("torch/csrc/api/include")])
        .includes(["cu13/include", "cu13/include/cccl", "nccl/include"].map(|headers| packages.join(headers)))
        .include("cpp/gloo_stub")
        .warnings(false)
        .files(["cpp/ops.cpp", "cpp/cuda.cpp", "cpp/store.cpp", "cpp/group.cpp", "cpp/profile.cpp"])
        .files(["cpp/fused.cpp", "cpp/softmax.cpp", "cpp/attention.cpp", "cpp/products.cpp", "cpp/decode.cpp"])
        .files(["cpp/generic.cpp", "cpp/cuda_ops.cpp", "cpp/autograd.cpp", "cpp/record.cpp"])
        // Threaded jumps would divide by e^88 on the side, and results too small for a float32 cost 100 cycles each.
        .flags(["-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-thread-jumps", "-Wno-psabi"])
        .compile("nestor_torch");
    // The OpenMP that libtorch brings and runs on: a second one would have threads of its own.
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib:+verbatim=libgomp.so.1");
    // Only for this package's own tests; RUNPATH, so that LD_LIBRARY_PATH wins.
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", lib.display());
}
