//! The order of modules that `lib.rs` states: a module uses those after it, and leaves.

use std::path::Path;

fn rust_files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).expect("source folder").map(|e| e.expect("entry").path());
    entries.flat_map(|p| if p.is_dir() { rust_files(&p) } else { vec![p] }).collect()
}

#[test]
fn modules_use_only_those_after_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = std::fs::read_to_string(source.join("lib.rs")).expect("lib.rs");
    let order: Vec<&str> = lib.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let place = |name: &str| order.iter().position(|m| *m == name);
    let first_leaf = place("data").expect("the leaves begin with data");
    let mut checked = 0;
    for path in rust_files(&source).iter().filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        let inside = path.strip_prefix(&source).expect("inside").with_extension("");
        let own = inside.iter().next().and_then(|n| n.to_str()).unwrap_or_default();
        let Some(own) = place(own) else { continue };
        let text = std::fs::read_to_string(path).expect("source");
        for part in text.split("crate::").skip(1) {
            let name: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            if let Some(used) = place(&name) {
                assert!(used >= own || used >= first_leaf, "{} uses {name}, which stands before it", path.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "only {checked} uses were found");
}
