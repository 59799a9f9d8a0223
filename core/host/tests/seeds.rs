//! Replays the seeds of the fuzz target for the messages of isolated plugins (`tests/fuzz`).

#[path = "../../../tests/fuzz/harness/seeds.rs"]
mod seeds;

use std::path::Path;

#[test]
fn seeds_of_the_reader_of_messages() {
    let inputs = seeds::seeds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), "isolation");
    assert!(inputs.len() > 20, "{}", inputs.len());
    for (name, bytes) in inputs {
        println!("{name}"); // shown where the next line panics
        nestor_host::read_anything(&bytes);
    }
}
