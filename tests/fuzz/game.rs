//! The reader of ALFWorld's game files.
#![no_main]

#[path = "harness/game.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::game(data));
