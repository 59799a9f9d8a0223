//! Tests against a scripted server on loopback and against recorded messages.

mod faults;
mod protocol;
mod server;
