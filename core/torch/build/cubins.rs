//! Compiles the CUDA kernels for each GPU architecture with the NVRTC of libtorch's wheel, which needs neither nvcc nor a
//! GPU, and writes an assembly file that embeds the results.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};

/// Architectures: Ampere (A100, then RTX 30), Ada, Hopper, Blackwell (data centres, then RTX 50). A cubin runs on GPUs of its
/// major version and of its minor version or a later one; one with `a` on that very version. PTX (`compute_`) is for all
/// others: the driver compiles it at the start.
const ARCHITECTURES: [&str; 7] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120", "compute_80"];

/// NVRTC's library in `nvidia/cu13/lib`, and the one beside it that it loads by name.
const LIBRARIES: [&str; 2] = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"];

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;

type Program = *mut c_void;
type Status = c_int;

/// The functions of nvrtc.h that a compilation calls.
#[derive(Clone, Copy)]
struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
}

impl Nvrtc {
    /// Loads the library from a folder.
    fn load(folder: &Path) -> Self {
        let mut library = std::ptr::null_mut();
        for name in LIBRARIES {
            let file = folder.join(name);
            let path = text(&file.to_string_lossy());
            // SAFETY: both are zero-terminated strings; NVRTC's initialisers have no demands.
            library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
            if library.is_null() {
                // SAFETY: after a failure dlerror gives a zero-terminated string.
                let why = unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy().into_owned();
                panic!("the CUDA kernels need NVRTC, which comes with the pinned torch wheel: {why}");
            }
        }
        let function = |name: &str| {
            // SAFETY: the library is open, the name zero-terminated.
            let found = unsafe { dlsym(library, text(name).as_ptr()) };
            assert!(!found.is_null(), "{}/{} has no {name}", folder.display(), LIBRARIES[1]);
            found
        };
        #[expect(clippy::missing_transmute_annotations, reason = "the fields have the types")]
        // SAFETY: the functions have these types in nvrtc.h of CUDA 13.
        unsafe {
            Self {
                create: std::mem::transmute(function("nvrtcCreateProgram")),
                compile: std::mem::transmute(function("nvrtcCompileProgram")),
                log_size: std::mem::transmute(function("nvrtcGetProgramLogSize")),
                log: std::mem::transmute(function("nvrtcGetProgramLog")),
                cubin_size: std::mem::transmute(function("nvrtcGetCUBINSize")),
                cubin: std::mem::transmute(function("nvrtcGetCUBIN")),
                ptx_size: std::mem::transmute(function("nvrtcGetPTXSize")),
                ptx: std::mem::transmute(function("nvrtcGetPTX")),
                destroy: std::mem::transmute(function("nvrtcDestroyProgram")),
            }
        }
    }

    /// The code of a source file for one architecture: a cubin, or PTX with a zero at its end.
    fn code(self, file: &Path, architecture: &str) -> Vec<u8> {
        let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (source, name) = (text(&source), text(&file.to_string_lossy()));
        let folder = file.parent().unwrap_or(Path::new(".")).display();
        let options = [format!("--gpu-architecture={architecture}"), format!("-I{folder}"), "--std=c++17".into()];
        let options = options.map(|option| text(&option));
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        // SAFETY: strings are zero-terminated and live through the calls; buffers have the sizes that NVRTC names.
        unsafe {
            let none = std::ptr::null();
            let made = (self.create)(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none);
            assert_eq!(made, 0, "NVRTC makes no program");
            if (self.compile)(program, options.len() as c_int, options.as_ptr()) != 0 {
                let mut size = 0;
                (self.log_size)(program, &mut size);
                let mut log = vec![0u8; size.max(1)];
                (self.log)(program, log.as_mut_ptr().cast());
                panic!("NVRTC for {architecture}:\n{}", String::from_utf8_lossy(&log).trim_end_matches('\0'));
            }
            let is_ptx = architecture.starts_with("compute_");
            let (size_of, get) = if is_ptx { (self.ptx_size, self.ptx) } else { (self.cubin_size, self.cubin) };
            let mut size = 0;
            assert_eq!(size_of(program, &mut size), 0, "NVRTC made no code for {architecture}");
            let mut code = vec![0u8; size];
            assert_eq!(get(program, code.as_mut_ptr().cast()), 0, "NVRTC gives no code for {architecture}");
            (self.destroy)(&mut program);
            code
        }
    }
}

fn text(s: &str) -> CString {
    CString::new(s).expect("a text without zeros")
}

/// Compiles `kernels.cu` for all architectures with the NVRTC in `nvrtc`. Returns an assembly file that has them between
/// the symbols `nestor_cubin_ARCH` and `nestor_cubin_ARCH_end`.
pub fn compile(kernels: &Path, nvrtc: &Path, out: &Path) -> PathBuf {
    let nvrtc = Nvrtc::load(nvrtc);
    let codes = std::thread::scope(|scope| {
        let started = ARCHITECTURES.map(|architecture| scope.spawn(move || nvrtc.code(kernels, architecture)));
        started.map(|thread| thread.join().expect("the kernels compile"))
    });
    let mut assembly = ".section .rodata\n".to_string();
    for (architecture, code) in ARCHITECTURES.into_iter().zip(codes) {
        let file = out.join(format!("{architecture}.code"));
        fs::write(&file, code).expect("the output folder takes a file");
        let symbol = format!("nestor_cubin_{architecture}");
        assembly += &format!(
            ".global {symbol}\n.global {symbol}_end\n.hidden {symbol}\n.hidden {symbol}_end\n.balign 64\n{symbol}:\n\
             .incbin \"{}\"\n{symbol}_end:\n",
            file.display()
        );
    }
    let file = out.join("cubins.S");
    fs::write(&file, assembly + ".section .note.GNU-stack,\"\",@progbits\n").expect("the output folder takes a file");
    file
}
