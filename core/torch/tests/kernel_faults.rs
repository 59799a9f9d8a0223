//! The emulator finds planted faults: `faults.cu` has a sound kernel, and the same with one fault each.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

type Emulate = unsafe extern "C" fn(
    name: *const c_char,
    grid: *const c_uint,
    threads: c_uint,
    shared: c_uint,
    args: *mut *mut c_void,
    message: *mut c_char,
    message_size: usize,
) -> c_int;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Builds the emulator with the faulty kernels.
fn library(sanitized: bool) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(folder.join("../../scripts/emulator.sh"));
    script.arg("--kernels").arg(folder.join("tests/faults.cu"));
    script.env("NESTOR_EMULATOR_SANITIZE", if sanitized { "1" } else { "" });
    let built = script.output().expect("bash");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    String::from_utf8(built.stdout).expect("a path").trim().into()
}

/// Runs a kernel on 64 numbers, each its index: the results, or the emulator's message.
fn launch(library: &Path, kernel: &str) -> Result<Vec<f32>, String> {
    const N: usize = 64;
    let text = |s: &str| CString::new(s).expect("a text without zeros");
    let (x, mut y): (Vec<f32>, Vec<f32>) = ((0..N).map(|i| i as f32).collect(), vec![-1.0; N]);
    let (mut from, mut to) = (x.as_ptr(), y.as_mut_ptr());
    let mut args = [(&raw mut from).cast::<c_void>(), (&raw mut to).cast()];
    let (path, name) = (text(&library.to_string_lossy()), text(kernel));
    let mut message = [0 as c_char; 512];
    // SAFETY: the library is the emulator, whose function has this type. The sound kernels read and write N numbers. Those
    // that leave global memory run in a process of their own.
    let failed = unsafe {
        let opened = dlopen(path.as_ptr(), 2);
        assert!(!opened.is_null(), "{} does not open", library.display());
        let emulate = dlsym(opened, c"nestor_emulate".as_ptr());
        assert!(!emulate.is_null(), "no function of the emulator");
        let emulate = std::mem::transmute::<*mut c_void, Emulate>(emulate);
        emulate(
            name.as_ptr(),
            [1, 1, 1].as_ptr(),
            N as c_uint,
            0,
            args.as_mut_ptr(),
            message.as_mut_ptr(),
            message.len(),
        )
    };
    if failed == 0 {
        return Ok(y);
    }
    // SAFETY: the emulator ends its message with a zero inside the buffer.
    Err(unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned())
}

#[test]
fn each_planted_fault_is_found() {
    let library = library(false);
    let mirrored = |length: usize| (0..64).map(|i| (i / length * length + length - 1 - i % length) as f32).collect();
    assert_eq!(launch(&library, "reverse"), Ok(mirrored(64)));
    assert_eq!(launch(&library, "reverse_in_warp"), Ok(mirrored(32)));
    for (kernel, found) in [
        ("no_barrier", "of shared array `numbers`"),
        ("no_barrier_before_next", "with no barrier between"),
        ("no_warp_barrier", "of shared array `numbers`"),
        ("half_barrier", "not all threads reach a barrier: 32 of 64"),
        ("half_shuffle", "not all threads reach a barrier"),
        ("unwritten", "reads element 5 of shared array `numbers`, which no thread of the block wrote"),
        ("shared_read_beyond", "accesses element 64 of shared array `numbers`, which has 64"),
        ("shared_write_beyond", "accesses element 64 of shared array `numbers`, which has 64"),
        ("no_such", "there is no such kernel"),
    ] {
        let message = launch(&library, kernel).expect_err(kernel);
        assert!(message.contains(found), "{kernel}: {message}");
    }
}

#[test]
fn accesses_outside_of_global_memory_are_found() {
    let library = library(true);
    let runtime = |name: &str| {
        let found = Command::new("g++").arg(format!("-print-file-name={name}")).output().expect("g++");
        String::from_utf8(found.stdout).expect("a path").trim().to_string()
    };
    let preloaded = format!("{} {}", runtime("libasan.so"), runtime("libubsan.so"));
    for (kernel, found) in
        [("reverse", None), ("read_beyond", Some("READ of size 4")), ("write_beyond", Some("WRITE of size 4"))]
    {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["a_launch_in_its_own_process", "--exact", "--ignored", "--nocapture"])
            .envs([
                ("LD_PRELOAD", preloaded.as_str()),
                ("ASAN_OPTIONS", "detect_leaks=0"),
                ("NESTOR_TEST_KERNEL", kernel),
            ])
            .env("NESTOR_TEST_LIBRARY", &library)
            .output()
            .expect("this program again");
        let errors = String::from_utf8_lossy(&child.stderr);
        match found {
            None => assert!(child.status.success(), "{kernel}: {errors}"),
            Some(found) => {
                let is_found = errors.contains("heap-buffer-overflow") && errors.contains(found);
                assert!(is_found && errors.contains("faults.cu"), "{kernel}: {errors}");
            }
        }
    }
}

#[test]
#[ignore = "the sanitized half of the test above"]
fn a_launch_in_its_own_process() {
    let variable = |name| std::env::var(name).expect("the test above sets it");
    launch(Path::new(&variable("NESTOR_TEST_LIBRARY")), &variable("NESTOR_TEST_KERNEL")).expect("sound");
}
