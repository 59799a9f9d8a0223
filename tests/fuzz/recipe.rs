//! The reader of recipes.
#![no_main]

#[path = "harness/core.rs"]
#[allow(dead_code)] // the other target's half
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::recipe(data));
