//! Compiles the shim against the headers of the libtorch that torch-sys was built with, and the CUDA kernels with its NVRTC.

use std::path::{Path, PathBuf};

#[path = "build/cubins.rs"]
mod cubins;

fn main() {
    for source in ["cpp", "cuda", "build.rs", "build"] {
        println!("cargo:rerun-if-changed={source}");
    }
    let lib = PathBuf::from(std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names libtorch's library folder"));
    let include = lib.join("../include");
    // The CUDA and NCCL headers of that torch are packages beside it.
    let packages = lib.canonicalize().expect("libtorch's library folder is there").join("../../nvidia");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo names the output folder"));
    let cubins = cubins::compile(Path::new("cuda/kernels.cu"), &packages.join("cu13/lib"), &out);
    cc::Build::new().file(cubins).compile("nestor_cubins");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        // As libtorch was built: without it some of its classes have another layout.
        .define("NDEBUG", None)
        .includes([include.clone(), include.join("torch/csrc/api/include")])
        .includes(["cu13/include", "cu13/include/cccl", "nccl/include"].map(|headers| packages.join(headers)))
        .includes(["cpp/gloo_stub", "cuda"])
        .warnings(false)
        .files(["cpp/ops.cpp", "cpp/cuda.cpp", "cpp/store.cpp", "cpp/group.cpp", "cpp/profile.cpp"])
        .files(["cpp/fused.cpp", "cpp/softmax.cpp", "cpp/attention.cpp", "cpp/products.cpp"])
        .files(["cpp/decode.cpp", "cpp/sample.cpp", "cpp/decode_kernels.cpp", "cpp/decode_self_tests.cpp"])
        .files(["cpp/generic.cpp", "cpp/cuda_ops.cpp", "cpp/graph.cpp", "cpp/autograd.cpp", "cpp/record.cpp"])
        .files(["cpp/adamw.cpp", "cpp/column_sums.cpp", "cpp/head.cpp", "cpp/rotate.cpp", "cpp/silu_mul.cpp"])
        .files(["cpp/kernels.cpp", "cpp/norm.cpp", "cpp/self_tests.cpp", "cpp/cuda_library.cpp"])
        // Threaded jumps would divide by e^88 on the side, and results too small for a float32 cost 100 cycles each.
        .flags(["-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-thread-jumps", "-Wno-psabi"])
        .compile("nestor_torch");
    // The OpenMP that libtorch brings and runs on: a second one would have threads of its own.
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib:+verbatim=libgomp.so.1");
    // Only for this package's own tests; RUNPATH, so that LD_LIBRARY_PATH wins.
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", lib.display());
}
