//! Own CUDA kernels: `cuda/*.cu`, compiled by `build.rs` and embedded. Operations of [`crate::generic`] launch them where a
//! tensor's device has them, and compute by libtorch's public operations elsewhere.
//!
//! A GPU has those of the machine code for its architecture, or else of PTX, which the driver compiles. The variable
//! `NESTOR_KERNELS` leaves out all (`none`) or some (`-adamw_f32,-sample_token_bf16`). A CPU has them where the library of the emulator is in place, which the variable
//! `NESTOR_EMULATED_KERNELS` names.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;

use anyhow::Result;
use tch::Device;

use super::call;

unsafe extern "C" {
    fn nestor_kernels_emulate(path: *const c_char, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_kernel_name(i: usize) -> *const c_char;
    fn nestor_has_kernel(name: *const c_char, gpu: i64) -> c_int;
    fn nestor_code_for(major: c_int, minor: c_int) -> *const c_char;
    fn nestor_code_of(gpu: i64) -> *const c_char;
    fn nestor_launches_record(on: c_int);
    fn nestor_launch(i: usize, shape: *mut c_uint, sizes: *mut *const usize, count: *mut usize) -> *const c_char;
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

/// The name of the code that a GPU of this compute capability runs, such as `sm_90a`, or `compute_80` for PTX; none where
/// there is none.
pub fn code_for(major: i32, minor: i32) -> Option<String> {
    // SAFETY: a constant of the program, or null.
    unsafe {
        let name = nestor_code_for(major, minor);
        (!name.is_null()).then(|| text(name))
    }
}

/// The name of the code that a GPU runs. None on a CPU, and where a GPU has no kernels.
pub fn code_of(device: Device) -> Option<String> {
    let Device::Cuda(gpu) = device else { return None };
    // SAFETY: a text that lives as long as the process, or null.
    unsafe {
        let name = nestor_code_of(gpu as i64);
        (!name.is_null()).then(|| text(name))
    }
}

/// A launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Bytes of each argument.
    pub arguments: Vec<usize>,
}

/// The launches in the emulator while `work` runs, of all threads. For tests: no other operation may run meanwhile.
pub fn launches(work: impl FnOnce()) -> Vec<Launch> {
    let launch = |i| {
        let (mut shape, mut sizes, mut count) = ([0; 4], std::ptr::null(), 0);
        // SAFETY: fills all three; the texts and sizes live until the next record.
        unsafe {
            let kernel = nestor_launch(i, shape.as_mut_ptr(), &mut sizes, &mut count);
            let [x, y, threads, shared] = shape;
            (!kernel.is_null()).then(|| Launch {
                kernel: text(kernel),
                grid: [x, y],
                threads,
                shared,
                arguments: std::slice::from_raw_parts(sizes, count).to_vec(),
            })
        }
    };
    // SAFETY: sets a flag and clears a list.
    unsafe { nestor_launches_record(1) };
    work();
    let all = (0..).map_while(launch).collect();
    // SAFETY: as before.
    unsafe { nestor_launches_record(0) };
    all
}

/// The embedded code: architectures, and the bytes of a cubin each, or of PTX.
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
/// returns them: public operations take their place. `before` gets the name of each kernel before its test. Does nothing on a
/// device that cannot have kernels, and nothing after the first call for a device.
///
/// # Errors
/// When a kernel faults, with its name: this process can use the GPU no more.
pub fn self_test(device: Device, mut before: impl FnMut(&str)) -> Result<Vec<LeftOut>> {
    /// The kernel that is tested, and the reason to leave it out; none before the test.
    type Report<'a> = dyn FnMut(String, Option<String>) + 'a;
    unsafe extern "C" fn report(to: *mut c_void, kernel: *const c_char, reason: *const c_char) {
        // SAFETY: `to` is the reference below, which outlives the call; the strings are zero-terminated.
        unsafe { (*to.cast::<&mut Report>())(text(kernel), (!reason.is_null()).then(|| text(reason))) };
    }
    let mut left_out: Vec<LeftOut> = Vec::new();
    let mut told = |kernel: String, reason: Option<String>| match reason {
        Some(reason) => left_out.push(LeftOut { kernel, reason }),
        None => before(&kernel),
    };
    let mut told: &mut Report = &mut told;
    let to = (&raw mut told).cast();
    // SAFETY: the reference lives through the call, which alone uses it.
    call(|message, size| unsafe { nestor_kernels_self_test(gpu(device), report, to, message, size) })?;
    Ok(left_out)
}
