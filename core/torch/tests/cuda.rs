//! The CUDA half of libtorch, loaded, and the settings for GPUs, read back. Both are those of a whole process, so this program
//! has a single test.

use nestor_torch::cuda::{Settings, load, memory, prepare, settings};
use nestor_torch::graph::GraphPool;
use tch::Device;

#[test]
fn the_cuda_half() {
    let before = GraphPool::new(Device::Cuda(0)).expect_err("no CUDA").to_string();
    assert!(before.contains("CUDA half of libtorch is not loaded"), "{before}");
    // Fails if the library lacks a function that has a stub.
    load().expect("loaded, without a GPU too");
    load().expect("and once more");
    assert!(tch::utils::has_cudart(), "libtorch was asked for CUDA before");
    // The only function of CUDA that needs no GPU.
    GraphPool::new(Device::Cuda(0)).expect("a pool");
    prepare_leaves_a_users_variables_alone();
}

fn prepare_leaves_a_users_variables_alone() {
    let variable = |name: &str| std::env::var(name).ok();
    // libtorch 2.11's defaults.
    let before =
        Settings { cudnn_attention: true, reduced_bfloat16: true, reduced_float16: true, ..Settings::default() };
    assert_eq!(settings().expect("read"), before);

    // SAFETY: this program's only test, so that no other thread reads the environment.
    unsafe {
        std::env::set_var("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128");
        std::env::set_var("NCCL_ASYNC_ERROR_HANDLING", "1");
    }
    prepare().expect("prepared");
    assert_eq!(settings().expect("read"), Settings::default());
    assert_eq!(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), None);
    assert_eq!(variable("TORCH_NCCL_ENABLE_MONITORING").as_deref(), Some("0"));

    // SAFETY: as above.
    unsafe {
        std::env::remove_var("PYTORCH_CUDA_ALLOC_CONF");
        std::env::remove_var("NCCL_ASYNC_ERROR_HANDLING");
    }
    prepare().expect("prepared");
    assert_eq!(settings().expect("read"), Settings { expandable_segments: true, ..Settings::default() });
    assert_eq!(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING").as_deref(), Some("0"));

    if !tch::Cuda::is_available() {
        memory(0).expect_err("no GPU has been used");
    }
}
