//! The embedded machine code: registers only, and loads of 128 bits where memory is the bound.

use nestor_torch::kernels;

use crate::facts::facts;

/// Kernels that need not load 128 bits at a time, as parts of their names.
const NARROW: [&str; 1] = ["paged_attention_combine"];

#[test]
fn kernels_spill_nothing_and_load_128_bits() {
    for (architecture, facts) in facts() {
        for name in kernels::names() {
            let kernel = facts.get(&name).unwrap_or_else(|| panic!("{architecture} has no {name}"));
            assert_eq!(kernel.spilled, 0, "{architecture} {name} uses memory in place of registers");
            if NARROW.iter().any(|narrow| name.contains(narrow)) {
                continue;
            }
            assert!(kernel.code.contains("LDG.E.128"), "{architecture} {name} loads no 128 bits");
            let of_two_bytes = name.starts_with("paged_attention") && !name.ends_with("f32");
            assert_eq!(kernel.code.contains("HMMA"), of_two_bytes, "{architecture} {name} and tensor cores");
        }
    }
}

/// Machine code of the wheel's architectures, and PTX for all GPUs between and after them.
#[test]
fn every_gpu_from_ampere_on_has_code() {
    for ((major, minor), code) in [
        ((7, 5), None),
        ((8, 0), Some("sm_80")),
        ((8, 6), Some("sm_86")),
        ((8, 7), Some("sm_86")),
        ((8, 9), Some("sm_89")),
        ((9, 0), Some("sm_90a")),
        ((9, 1), Some("compute_80")),
        ((10, 0), Some("sm_100")),
        ((10, 3), Some("sm_100")),
        ((11, 0), Some("compute_80")),
        ((12, 0), Some("sm_120")),
        ((12, 1), Some("sm_120")),
        ((13, 0), Some("compute_80")),
    ] {
        assert_eq!(kernels::code_for(major, minor).as_deref(), code, "{major}.{minor}");
    }
    let ptx: Vec<_> = kernels::cubins().into_iter().filter(|(name, _)| name == "compute_80").collect();
    let text = std::str::from_utf8(ptx[0].1).expect("text");
    assert!(text.ends_with('\0'), "the driver reads PTX up to a zero");
    for name in kernels::names() {
        assert!(text.contains(&format!(".entry {name}(")), "PTX has no {name}");
    }
}
