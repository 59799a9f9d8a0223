//! The reader of WebShop's actions, and the pages that answer them.
#![no_main]

#[allow(dead_code, reason = "each target has one of the bodies")]
#[path = "harness/webshop.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::actions(data));
