//! Replays the seeds of WebShop's fuzz targets (`tests/fuzz`).

#[path = "../../../../tests/fuzz/harness/seeds.rs"]
mod seeds;
#[path = "../../../../tests/fuzz/harness/webshop.rs"]
mod harness;

use std::path::Path;

/// Runs the body of a target on all its seeds.
fn replay(target: &str, body: fn(&[u8])) {
    let seeds = seeds::seeds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."), target);
    assert!(seeds.len() > 20, "{}", seeds.len());
    for (name, bytes) in seeds {
        println!("{name}"); // shown where the next line panics
        body(&bytes);
    }
}

#[test]
fn seeds_of_the_files() {
    replay("webshop_files", harness::files);
}

#[test]
fn seeds_of_the_actions() {
    replay("webshop_actions", harness::actions);
}

#[test]
fn seeds_of_the_index() {
    replay("webshop_index", harness::index);
}
