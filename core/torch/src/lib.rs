//! A thin shim over libtorch: operations that tch lacks, and c10d's process groups. Tensors cross by pointer.

mod adamw;
pub mod autograd;
pub mod cuda;
mod decode;
pub mod decoding;
pub mod fused;
pub mod generic;
pub mod graph;
mod group;
pub mod head;
pub mod host;
pub mod kernels;
mod math;
pub mod ops;
pub mod packed;
mod profile;
pub mod record;
mod store;

use std::ffi::{CStr, c_char, c_int};

use anyhow::{Result, bail};
use tch::{Device, Tensor};

pub use adamw::{AdamW, AdamWState, adamw};
pub use decode::{PAGE, PagedCache, RawDraw, RawDrawn, ReorderedLinear, Segment, draw};
pub use group::{Backend, Member, Network, ProcessGroup, Progress, Reduce, Work};
pub use math::choose_math;
pub use profile::{Dear, Profile, profile};
pub use store::{Store, StoreAddress, exit_now};

type TensorPtr = *const torch_sys::C_tensor;

unsafe extern "C" {
    fn nestor_torch_version() -> *const c_char;
    fn nestor_deterministic(on: bool, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_cuda_upload(
        host: TensorPtr,
        index: i64,
        copy: *mut *mut torch_sys::C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// The version of the libtorch that Nestor was built with, such as `2.11.0`.
pub fn version() -> String {
    // SAFETY: a constant string of the shim, which lives as long as the process.
    unsafe { CStr::from_ptr(nestor_torch_version()) }.to_string_lossy().into_owned()
}

/// Makes libtorch choose deterministic algorithms for the rest of the process, and fail where there is none.
pub fn set_deterministic(on: bool) -> Result<()> {
    // SAFETY: sets a flag of libtorch's global context; the message buffer is ours.
    call(|message, size| unsafe { nestor_deterministic(on, message, size) })
}

/// Calls a shim function with a message buffer and turns a failure into an error.
fn call(f: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<()> {
    let mut message = [0 as c_char; 1024];
    if f(message.as_mut_ptr(), message.len()) != 0 {
        // SAFETY: the shim ends its message with a zero inside the buffer.
        let text = unsafe { CStr::from_ptr(message.as_ptr()) };
        bail!("libtorch: {}", text.to_string_lossy());
    }
    Ok(())
}

/// Calls a function of the shim that fails only on wrong arguments.
fn must(f: impl FnOnce(*mut c_char, usize) -> c_int) {
    if let Err(error) = call(f) {
        panic!("{error}");
    }
}

/// Calls a function of the shim that creates N tensors.
fn made<const N: usize>(f: impl FnOnce(*mut *mut torch_sys::C_tensor, *mut c_char, usize) -> c_int) -> [Tensor; N] {
    let mut made = [std::ptr::null_mut(); N];
    must(|message, size| f(made.as_mut_ptr(), message, size));
    // SAFETY: on success the shim has written N tensors made with `new`, which we own from here on.
    made.map(|tensor| unsafe { Tensor::from_ptr(tensor) })
}

/// Copies numbers to a device. On CUDA they go through pinned memory, and the host does not wait.
pub fn upload<T: tch::kind::Element>(numbers: &[T], device: Device) -> Tensor {
    let host = Tensor::from_slice(numbers);
    let Device::Cuda(index) = device else { return host.to_device(device) };
    // SAFETY: the tensor lives through the call, which makes one new tensor.
    let [copy] =
        made(|copy, message, size| unsafe { nestor_cuda_upload(host.as_ptr(), index as i64, copy, message, size) });
    copy
}
