//! The reader of an OpenEnv server's messages.
#![no_main]

#[path = "harness/openenv.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::openenv(data));
