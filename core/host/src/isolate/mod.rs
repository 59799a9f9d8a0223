//! Plugins in processes of their own (`isolate: process`).
//!
//! The trainer starts the program `nestor-host` ([`program`]), which loads the file and opens the component ([`serve`]). For
//! each instance it forks: the copies share the open world, and each answers calls of its own. A plugin with threads or open
//! descriptors cannot be copied so; each instance then is a fresh `nestor-host`. A process that dies, or that takes too long
//! and is killed, harms no other; the next spawn makes a new one ([`process`]).
//!
//! The trainer's child is a keeper, which starts the process that loads the file and ends all that is below it, whoever dies
//! first ([`keeper`]).
//!
//! A call is one message each way on a socket; a body that is too long for it is in a file in memory that both processes
//! have open ([`channel`]). The socket also tells the trainer that the process died. [`frame`] has the messages.

mod channel;
pub mod frame;
mod guard;
mod keeper;
mod leave_parent;
mod output;
mod process;
mod program;
mod serve;
mod status;
mod world;

pub use process::{Process, Start};
pub use serve::serve;
pub use status::Bounds;
pub use world::World;
