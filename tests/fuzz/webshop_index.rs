//! The reader of WebShop's index.
#![no_main]

#[allow(dead_code, reason = "each target has one of the bodies")]
#[path = "harness/webshop.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::index(data));
