//! The reader of model files.
#![no_main]

#[path = "harness/core.rs"]
#[allow(dead_code)] // the other target's half
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::safetensors(data));
