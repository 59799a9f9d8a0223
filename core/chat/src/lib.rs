//! OpenAI's chat completions, for programs that speak them: the requests ([`Request`]) and answers ([`Answer`]) as plain data, calls of
//! tools in the text of a model ([`parse`]), the equality of messages that went through a client ([`same`]), an HTTP server that
//! hands each request to its owner ([`Server`]), and a client ([`Client`]). It needs no libtorch, and it decides nothing: the owner answers.
//!
//! Modules are listed in reading order: a module uses those after it, never those before.

#![forbid(unsafe_code)]

mod client;
mod said;
mod server;
mod answer;
mod request;
mod refusal;
mod calls;
mod normal;

pub use answer::{Answer, Choice, Part};
pub use calls::{Parsed, parse};
pub use client::{Client, ClientOptions, Failure, ServedModel};
pub use normal::{for_template, same};
pub use refusal::Refusal;
pub use request::{Request, Sampling, StepNote};
pub use said::Said;
pub use server::{Asked, Call, Reply, Server, ServerOptions};
