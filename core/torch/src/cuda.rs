//! Settings of libtorch for GPUs, and the memory that its allocator of a GPU counts.

use std::ffi::{c_char, c_int};
use std::path::Path;

use anyhow::Result;

use super::call;

/// Devices of the drivers through which CUDA finds GPUs: NVIDIA's, and that of Windows under WSL.
const DRIVERS: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"];

/// Variables with which a user sets libtorch's allocator, the newer name first.
const ALLOCATOR: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// Variables of c10d's NCCL groups, each with its older name and the value that Nestor's ranks need. By default c10d ends
/// the process when a collective fails or takes too long, or when its own thread hangs. Nestor's watch would then have no
/// time to name the rank at fault.
const NCCL: [(&[&str], &str); 2] = [
    (&["TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"], "0"),
    (&["TORCH_NCCL_ENABLE_MONITORING"], "0"),
];

/// Settings of libtorch that concern GPUs.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// `scaled_dot_product_attention` may choose cuDNN.
    pub cudnn_attention: bool,
    /// Products may add partial sums in bfloat16.
    pub reduced_bfloat16: bool,
    /// Products may add partial sums in float16.
    pub reduced_float16: bool,
    /// The allocator grows its segments in place.
    pub expandable_segments: bool,
}

/// The counts of libtorch's allocator for a GPU, in bytes and calls.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Largest sum of the tensors.
    pub peak_allocated: i64,
    /// Most memory taken from the GPU, for tensors and as reserve.
    pub peak_reserved: i64,
    /// Sum of the tensors now.
    pub allocated: i64,
    /// Memory taken from the GPU now.
    pub reserved: i64,
    /// Memory of the GPU in use now that libtorch's allocator has not taken: CUDA's context, libraries, NCCL's buffers, and
    /// other processes.
    pub outside: i64,
    /// Allocations for which the allocator first had to give its reserve back.
    pub retries: i64,
    /// Failed allocations.
    pub ooms: i64,
}

impl DeviceMemory {
    /// Peak of the GPU's memory in use. Takes the part outside the allocator as it is now.
    pub fn peak(&self) -> i64 {
        self.peak_reserved + self.outside
    }
}

unsafe extern "C" {
    fn nestor_cuda_load(message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_cuda_prepare(expandable_segments: bool, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_cuda_settings_now(settings: *mut Settings, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_cuda_memory(index: i64, memory: *mut DeviceMemory, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_cuda_reset_peak(index: i64, message: *mut c_char, message_size: usize) -> c_int;
}

/// Loads the CUDA half of libtorch if there is a driver of a GPU, and returns true if there is. Must come before libtorch is
/// asked for GPUs the first time. On other machines a start so takes half the time. An error if a library is missing; libtorch
/// then finds no GPU.
pub fn load_where_useful() -> Result<bool> {
    let useful = DRIVERS.iter().any(|driver| Path::new(driver).exists());
    if useful {
        load()?;
    }
    Ok(useful)
}

/// Loads the CUDA half of libtorch.
pub fn load() -> Result<()> {
    // SAFETY: loads the library of the libtorch that this program is linked against, whose initializers only register
    // themselves in tables that libtorch guards; the message buffer is ours.
    call(|message, size| unsafe { nestor_cuda_load(message, size) })
}

/// Sets libtorch and c10d up for GPUs, except where the user's variables do. Must come before the first tensor on a GPU,
/// the first process group and the first thread; later calls repeat the same settings.
pub fn prepare() -> Result<()> {
    let is_set = |names: &[&str]| names.iter().any(|name| std::env::var_os(name).is_some());
    for (names, value) in NCCL {
        if !is_set(names) {
            // SAFETY: no other thread runs yet that reads the environment without Rust's lock, as the contract says.
            unsafe { std::env::set_var(names[0], value) };
        }
    }
    let expandable_segments = !is_set(&ALLOCATOR);
    // SAFETY: sets flags of libtorch; the message buffer is ours.
    call(|message, size| unsafe { nestor_cuda_prepare(expandable_segments, message, size) })
}

/// The settings in force.
pub fn settings() -> Result<Settings> {
    let mut settings = Settings::default();
    // SAFETY: fills the struct, whose layout is that of the C++ side.
    call(|message, size| unsafe { nestor_cuda_settings_now(&mut settings, message, size) })?;
    Ok(settings)
}

/// The counts of a GPU's allocator since the start of the process or the last [`reset_peak`]. An error before
/// the first tensor on a GPU.
pub fn memory(gpu: usize) -> Result<DeviceMemory> {
    let (index, mut memory) = (i64::try_from(gpu)?, DeviceMemory::default());
    // SAFETY: fills the struct, whose layout is that of the C++ side.
    call(|message, size| unsafe { nestor_cuda_memory(index, &mut memory, message, size) })?;
    Ok(memory)
}

/// Starts new peaks at the present figures, and the counts of retries and failures at 0.
pub fn reset_peak(gpu: usize) -> Result<()> {
    let index = i64::try_from(gpu)?;
    // SAFETY: changes counters of libtorch's allocator, which guards them with its own lock.
    call(|message, size| unsafe { nestor_cuda_reset_peak(index, message, size) })
}
