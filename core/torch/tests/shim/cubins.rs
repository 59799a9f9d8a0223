//! The embedded machine code: registers only, and loads of 128 bits where memory is the bound.

use std::path::PathBuf;
use std::process::Command;

use nestor_torch::kernels;

/// Kernels that need not load 128 bits at a time, as parts of their names.
const NARROW: [&str; 1] = ["paged_attention_combine"];

/// The output of triton's cuobjdump, which comes with the pinned torch wheel.
fn cuobjdump(option: &str, cubin: &PathBuf) -> String {
    let packages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/lib/python3.11/site-packages");
    let folder = PathBuf::from(packages).join("triton/backends/nvidia/bin");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new(folder.join("cuobjdump")).arg(option).arg(cubin).env("PATH", path).output();
    let output = output.expect("cuobjdump runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn kernels_spill_nothing_and_load_128_bits() {
    let cubins = kernels::cubins();
    let architectures: Vec<_> = cubins.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(architectures, ["sm_80", "sm_90a", "sm_100"]);
    for (architecture, bytes) in cubins {
        let file = std::env::temp_dir().join(format!("nestor-{}-{architecture}.cubin", std::process::id()));
        std::fs::write(&file, bytes).expect("written");
        let (usage, code) = (cuobjdump("-res-usage", &file), cuobjdump("-sass", &file));
        std::fs::remove_file(&file).expect("removed");
        for name in kernels::names() {
            let after =
                |text: &str, end: char, of: &str| of.split(&format!("{text}{name}{end}")).nth(1).map(str::to_string);
            let used = after("Function ", ':', &usage).unwrap_or_else(|| panic!("{architecture} has no {name}"));
            let used = used.lines().nth(1).unwrap_or_default();
            assert!(used.contains("STACK:0") && used.contains("LOCAL:0"), "{architecture} {name}: {used}");
            if NARROW.iter().any(|narrow| name.contains(narrow)) {
                continue;
            }
            let code = after("Function : ", '\n', &code).unwrap_or_else(|| panic!("no code of {name}"));
            let code = code.split("Function : ").next().unwrap_or_default();
            assert!(code.contains("LDG.E.128"), "{architecture} {name} loads no 128 bits");
            let of_two_bytes = name.starts_with("paged_attention") && !name.ends_with("f32");
            assert_eq!(code.contains("HMMA"), of_two_bytes, "{architecture} {name} and tensor cores");
        }
    }
}
