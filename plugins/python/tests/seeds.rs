//! Replays the seeds of the fuzz target for the worker's frames (`tests/fuzz`).

#[path = "../../../tests/fuzz/harness/python.rs"]
mod harness;
#[path = "../../../tests/fuzz/harness/seeds.rs"]
mod seeds;

use std::path::Path;

#[test]
fn seeds_of_the_frame_reader() {
    let seeds = seeds::seeds(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), "python");
    assert!(seeds.len() > 5, "{}", seeds.len());
    for (name, bytes) in seeds {
        println!("{name}"); // shown where the next line panics
        harness::python(&bytes);
    }
}
