//! The reader of messages from and to processes that run plugins.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nestor_host::read_anything(data));
