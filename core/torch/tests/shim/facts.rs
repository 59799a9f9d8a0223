//! Facts of the embedded machine code, by triton's cuobjdump, which comes with the pinned torch wheel.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use nestor_torch::kernels;

/// A kernel's machine code.
#[derive(Debug, Default, Clone)]
pub struct Facts {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's stack and local memory.
    pub spilled: u32,
    /// Bytes of a block's static shared memory.
    pub shared: u32,
    /// Bytes of each parameter.
    pub parameters: Vec<usize>,
    /// The instructions.
    pub code: String,
}

/// The kernels of each architecture with machine code, by name.
pub fn facts() -> Vec<(String, HashMap<String, Facts>)> {
    let cubins = kernels::cubins().into_iter().filter(|(architecture, _)| architecture.starts_with("sm_"));
    cubins.map(|(architecture, bytes)| (architecture, of_cubin(bytes))).collect()
}

fn of_cubin(bytes: &[u8]) -> HashMap<String, Facts> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    let [usage, elf, code] = ["-res-usage", "-elf", "-sass"].map(|option| cuobjdump(option, file.path()));
    let mut all: HashMap<String, Facts> = HashMap::new();
    // " Function NAME:", and on the next line "  REG:32 STACK:0 SHARED:96 LOCAL:0 …".
    for part in usage.split("Function ").skip(1) {
        let (name, rest) = part.split_once(':').expect("a name");
        let number = |key: &str| -> u32 {
            let digits = rest.split(key).nth(1).unwrap_or_else(|| panic!("{key} of {name}"));
            digits.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
        };
        let facts = all.entry(name.to_string()).or_default();
        facts.registers = number("REG:");
        facts.spilled = number("STACK:") + number("LOCAL:");
        facts.shared = number("SHARED:");
    }
    for part in elf.split(".nv.info.").skip(1) {
        let name = part.split_whitespace().next().unwrap_or_default();
        let Some(facts) = all.get_mut(name).filter(|facts| facts.parameters.is_empty()) else { continue };
        // "Index : 0x0 Ordinal : 0x3 Offset : 0x18 Size : 0x4" for each parameter.
        let mut sizes: Vec<(usize, usize)> = Vec::new();
        for parameter in part.split("Ordinal :").skip(1) {
            let hex = |text: &str| usize::from_str_radix(text.trim().trim_start_matches("0x"), 16).expect("a number");
            let ordinal = hex(parameter.split_whitespace().next().unwrap_or_default());
            let size = parameter.split("Size").nth(1).and_then(|rest| rest.split_whitespace().nth(1));
            sizes.push((ordinal, hex(size.unwrap_or_default())));
        }
        sizes.sort_unstable();
        facts.parameters = sizes.into_iter().map(|(_, size)| size).collect();
    }
    for part in code.split("Function : ").skip(1) {
        let (name, instructions) = part.split_once('\n').unwrap_or((part, ""));
        all.entry(name.trim().to_string()).or_default().code = instructions.to_string();
    }
    all
}

fn cuobjdump(option: &str, cubin: &Path) -> String {
    let packages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/lib/python3.11/site-packages");
    let folder = PathBuf::from(packages).join("triton/backends/nvidia/bin");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new(folder.join("cuobjdump")).arg(option).arg(cubin).env("PATH", path).output();
    let output = output.expect("cuobjdump runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
