//! The program `nestor`: it reads the command line, runs the commands that need no libtorch, and becomes `nestor-torch` for
//! all others.

mod compare;
mod doctor;
pub mod ended_children;
mod libtorch;
pub mod own;
mod plugin;
mod sweep;
pub mod torch;
