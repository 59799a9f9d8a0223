//! Replays the seeds of the fuzz target for a server's messages (`tests/fuzz`).

#[path = "../../../tests/fuzz/harness/openenv.rs"]
mod harness;
#[path = "../../../tests/fuzz/harness/seeds.rs"]
mod seeds;

use std::path::Path;

#[test]
fn seeds_of_the_message_reader() {
    let seeds = seeds::seeds(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), "openenv");
    assert!(seeds.len() > 5, "{}", seeds.len());
    for (name, bytes) in seeds {
        println!("{name}"); // shown where the next line panics
        harness::openenv(&bytes);
    }
}
