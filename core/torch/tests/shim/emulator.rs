//! The emulator of the kernels, in place of a GPU for this process's tensors on a CPU.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

use nestor_torch::kernels;

/// Builds the emulator, unless `NESTOR_EMULATED_KERNELS` names a library, and puts it in place.
pub fn put_in_place() {
    nestor_torch::choose_math();
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("NESTOR_EMULATED_KERNELS").is_some() {
            return;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/emulator.sh");
        let built = Command::new(script).output().expect("bash");
        let path = String::from_utf8(built.stdout).expect("a path");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        kernels::emulate(Some(Path::new(path.trim()))).expect("the emulator");
    });
}
