//! The inputs kept for one fuzz target, read from its archive.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

/// Name and bytes of every seed in `tests/fuzz/seeds/TARGET.tar.gz`.
pub fn seeds(workspace: &Path, target: &str) -> Vec<(String, Vec<u8>)> {
    let path = workspace.join(format!("tests/fuzz/seeds/{target}.tar.gz"));
    let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(path).expect("an archive of seeds")));
    let read = |mut entry: tar::Entry<_>| {
        let name = entry.path().expect("a name").display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("a whole seed");
        (name, bytes)
    };
    archive.entries().expect("an archive").map(|entry| read(entry.expect("a seed"))).collect()
}
