//! All tests of the crate that use it from outside: one program, which links libtorch once.

#[path = "support/dispatched.rs"]
mod dispatched;
mod support;

mod advantage;
mod docs;
mod fused;
mod loss_plugins;
mod losses;
mod neutral;
mod operations;
mod play;
mod player;
mod plugins;
mod prefix_tree;
mod products;
mod seeds;
mod transcript;
mod update;
