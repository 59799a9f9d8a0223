//! Tests of the shim. They are one program, because each program links and loads libtorch.

mod cubins;
mod decode;
mod draw;
mod emulator;
mod facts;
mod norm;
mod random;
mod train;
