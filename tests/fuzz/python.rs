//! The reader of the Python worker's frames.
#![no_main]

#[path = "harness/python.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::python(data));
