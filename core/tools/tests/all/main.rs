//! All tests of the crate that use it from outside: one program, which links libtorch once.

#[path = "../../../nestor/tests/all/support/mod.rs"]
mod support;

mod damage;
mod init;
