//! Own CUDA kernels: `cuda/*.cu`, compiled by `build.rs` and embedded. Operations of [`crate::generic`] launch them where a
//! tensor's device has them, and compute by libtorch's public operations elsewhere.
//!
//! A GPU has those that its architecture's cubin holds. The variable `NESTOR_KERNELS` leaves out all (`none`) or some
//! (`-adamw_f32,-sample_token_bf16`). A CPU has them where the library of the emulator is in place, which the variable
//! `NESTOR_EMULATED_KERNELS` names.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use anyhow::Result;
use tch::Device;

use super::call;

unsafe extern "C" {
    fn nestor_kernels_emulate(path: *const c_char, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_kernel_name(i: usize) -> *const c_char;
    fn nestor_has_kernel(name: *const c_char, gpu: i64) -> c_int;
    fn nestor_cubin(i: usize, bytes: *mut *const u8, size: *mut usize) -> *const c_char;
    fn nestor_kernels_self_test(
        gpu: i64,
        report: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char),
        to: *mut c_void,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// A kernel that [`self_test`] left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub kernel: String,
    pub reason: String,
}

/// The number of a GPU, or -1 for the CPU.
fn gpu(device: Device) -> i64 {
    match device {
        Device::Cuda(index) => index as i64,
        _ => -1,
    }
}

/// # Safety
/// The pointer is to a zero-terminated string.
unsafe fn text(s: *const c_char) -> String {
    // SAFETY: as the contract says.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// The names of all kernels: an operation and the type of its elements, such as `rms_norm_bf16`.
pub fn names() -> Vec<String> {
    // SAFETY: strings of the shim, which live as long as the process; null ends them.
    let name = |i| unsafe {
        let name = nestor_kernel_name(i);
        (!name.is_null()).then(|| text(name))
    };
    (0..).map_while(name).collect()
}

/// The first word of the variable `NESTOR_KERNELS` that leaves out no kernel, unless the variable is `none`.
pub fn unknown_choice() -> Option<String> {
    let chosen = std::env::var("NESTOR_KERNELS").ok().filter(|chosen| !chosen.is_empty() && chosen != "none")?;
    let is_known = |word: &str| word.strip_prefix('-').is_some_and(|name| names().iter().any(|known| known == name));
    chosen.split(',').find(|word| !is_known(word)).map(str::to_string)
}

/// The embedded machine code: architectures, and the bytes of a cubin each.
pub fn cubins() -> Vec<(String, &'static [u8])> {
    let cubin = |i| {
        let (mut bytes, mut size) = (std::ptr::null(), 0);
        // SAFETY: fills both; the bytes are a constant of the program.
        unsafe {
            let architecture = nestor_cubin(i, &mut bytes, &mut size);
            (!architecture.is_null()).then(|| (text(architecture), std::slice::from_raw_parts(bytes, size)))
        }
    };
    (0..).map_while(cubin).collect()
}

/// Returns true if operations on this device launch this kernel.
pub fn has(name: &str, device: Device) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    // SAFETY: a zero-terminated string.
    unsafe { nestor_has_kernel(name.as_ptr(), gpu(device)) == 1 }
}

/// Puts the emulator's library in place, so that operations on a CPU launch the kernels there, or takes it away. For tests: no
/// operation may run meanwhile.
///
/// # Errors
/// When the library does not open.
pub fn emulate(library: Option<&Path>) -> Result<()> {
    let path = library.map(|path| CString::new(path.as_os_str().as_encoded_bytes())).transpose()?;
    let path = path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    // SAFETY: a zero-terminated path, or null.
    call(|message, size| unsafe { nestor_kernels_emulate(path, message, size) })
}

/// Runs each kernel of a device on a small input, against public operations. Leaves out those that differ or do not load, and
/// returns them: public operations take their place. Does nothing on a device that cannot have kernels, and nothing after the
/// first call for a device.
pub fn self_test(device: Device) -> Result<Vec<LeftOut>> {
    unsafe extern "C" fn report(to: *mut c_void, kernel: *const c_char, reason: *const c_char) {
        // SAFETY: `to` is the list below, which outlives the call; the strings are zero-terminated.
        unsafe { (*to.cast::<Vec<LeftOut>>()).push(LeftOut { kernel: text(kernel), reason: text(reason) }) };
    }
    let mut left_out: Vec<LeftOut> = Vec::new();
    let to = (&raw mut left_out).cast();
    // SAFETY: the list lives through the call, which alone uses it.
    call(|message, size| unsafe { nestor_kernels_self_test(gpu(device), report, to, message, size) })?;
    Ok(left_out)
}
