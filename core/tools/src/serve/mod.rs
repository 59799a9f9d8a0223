//! `nestor serve`: answers chat completions over HTTP with a model on disk, and with adapters of it.
//!
//! The HTTP server has a thread of its own, and sends each request to the loop here, which owns the engines. Each model has an engine of
//! its own, and the loop has them take turns, one pass each. So a request waits for no other model's answers.

mod models;
mod served;
mod terms;
mod writing;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, Result};
use nestor_chat::{Asked, Call, Refusal, Server, ServerOptions};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tch::{Device, Kind};

use self::models::Models;
use self::served::Served;
use self::terms::Chats;
use crate::engine::EngineOptions;
use crate::input_error;
use crate::model::Model;
use crate::plugin;
use crate::terminal;

/// Longest body of a request in bytes.
const LONGEST_BODY: usize = 64 << 20;
/// Longest prompt and response together where no option says it.
const USUAL_CONTEXT: usize = 8192;

/// Options of `nestor serve`.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// A model as [`crate::checkpoint::Source::find`] finds it.
    pub model: PathBuf,
    /// NAME=PATH of each of its adapters.
    pub adapters: Vec<String>,
    /// The model's name; by default that of its folder.
    pub name: Option<String>,
    pub address: SocketAddr,
    /// The key that every request must send.
    pub key: Option<String>,
    /// Requests of one model decoded at once.
    pub slots: usize,
    /// Longest prompt and response together, in tokens.
    pub max_tokens: Option<usize>,
    /// The chat template's thinking switch; none keeps its default.
    pub thinking: Option<bool>,
    /// The compute type.
    pub kind: Kind,
    pub device: Device,
}

/// Serves until a signal ends the process, with code 0. `ready` gets the base URL.
///
/// # Errors
/// If the options, the models or the address are not fit to serve.
pub fn serve(options: &ServeOptions, ready: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    check(options)?;
    end_by_signal()?;
    let models = Models::load(options)?;
    let context = context(options, &models.all[0].1)?;
    let chats = Chats::load(&models.folder, options.thinking)?;
    let engine = EngineOptions {
        slots: options.slots,
        capacity: context,
        ends: chats.usual().eos().to_vec().into(),
        ..EngineOptions::default()
    };
    let (sender, calls) = channel();
    let server = ServerOptions { address: options.address, longest_body: LONGEST_BODY };
    // Once the loop is gone, the call is dropped and its client gets status 503.
    let server = Server::start(&server, move |call| drop(sender.send(call)))?;
    ready(&server.base_url())?;
    let served = models.all.iter().map(|(name, model)| Served::new(name, model, engine.clone())).collect();
    Service { served, chats, key: options.key.clone() }.run(&calls)
}

fn check(options: &ServeOptions) -> Result<()> {
    if options.slots == 0 {
        return Err(input_error!("--slots must be at least 1"));
    }
    let address = options.address;
    if !address.ip().is_loopback() && options.key.is_none() {
        return Err(input_error!(
            "--host {}: other machines could use the model without a key; set one by --api-key or NESTOR_API_KEY, or listen on \
             127.0.0.1",
            address.ip()
        ));
    }
    // Before the model is loaded, which may take long.
    TcpListener::bind(address).map(drop).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            input_error!("port {} of {} is in use; choose another one by --port", address.port(), address.ip())
        }
        _ => input_error!("cannot listen on {address}: {error}; change --host or --port"),
    })
}

/// Longest prompt and response together.
fn context(options: &ServeOptions, model: &Model) -> Result<usize> {
    let longest = model.config.max_position_embeddings.max(1) as usize;
    match options.max_tokens {
        None => Ok(longest.min(USUAL_CONTEXT)),
        Some(tokens @ 2..) if tokens <= longest => Ok(tokens),
        Some(tokens) => {
            Err(input_error!("--max-tokens {tokens}: it must be from 2 to the model's context of {longest}"))
        }
    }
}

/// Has SIGINT and SIGTERM end the process at once: nothing is left to save.
fn end_by_signal() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let end = move || {
        if signals.forever().next().is_some() {
            terminal::clear();
            plugin::leave_at_once(0)
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(end).context("watching for signals")?;
    Ok(())
}

/// All models, and the requests under way.
struct Service<'a> {
    served: Vec<Served<'a>>,
    chats: Chats,
    key: Option<String>,
}

impl Service<'_> {
    /// Answers requests until the server is gone.
    fn run(mut self, calls: &Receiver<Call>) -> Result<()> {
        loop {
            if self.served.iter().all(Served::is_idle) {
                let Ok(call) = calls.recv() else { return Ok(()) };
                self.take(call);
            }
            calls.try_iter().for_each(|call| self.take(call));
            for number in 0..self.served.len() {
                if self.served[number].needs_weights() {
                    // A CPU's weights are a copy of the model's: idle models need none.
                    self.served.iter_mut().filter(|other| other.is_idle()).for_each(Served::drop_weights);
                }
                self.served[number].step(self.chats.usual());
            }
        }
    }

    /// Answers a request, or gives it to its model.
    fn take(&mut self, call: Call) {
        let Call { token, asked, reply } = call;
        if self.key.is_some() && token != self.key {
            return reply
                .refuse(Refusal::new(401, "the API key is missing or wrong: send `Authorization: Bearer KEY`"));
        }
        let names = || self.served.iter().map(|served| served.name().to_string()).collect::<Vec<_>>();
        match asked {
            Asked::Models => reply.models(&names()),
            Asked::End(_) => {
                reply.refuse(Refusal::new(404, "a served model plays no episodes; only a run's endpoint does"))
            }
            Asked::Completion(request) => {
                let number = match request.model.as_str() {
                    "" => Some(0),
                    name => self.served.iter().position(|served| served.name() == name),
                };
                match number {
                    Some(number) => self.served[number].take(*request, reply, &mut self.chats),
                    None => {
                        let text = format!("the model `{}` is unknown; known: {}", request.model, names().join(", "));
                        reply.refuse(Refusal { key: Some("model".into()), ..Refusal::new(404, text) });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(address: &str) -> ServeOptions {
        ServeOptions {
            model: PathBuf::from("nowhere"),
            adapters: Vec::new(),
            name: None,
            address: address.parse().expect("an address"),
            key: None,
            slots: 1,
            max_tokens: None,
            thinking: None,
            kind: Kind::Float,
            device: Device::Cpu,
        }
    }

    #[test]
    fn an_open_host_needs_a_key_and_a_free_port() {
        let message = |options: &ServeOptions| check(options).expect_err("refused").to_string();
        assert!(message(&options("0.0.0.0:0")).contains("--api-key"));
        check(&ServeOptions { key: Some("k".into()), ..options("0.0.0.0:0") }).expect("a key");
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address");
        let wanted = format!("port {} of 127.0.0.1 is in use; choose another one by --port", address.port());
        assert_eq!(message(&options(&address.to_string())), wanted);
        assert!(message(&ServeOptions { slots: 0, ..options("127.0.0.1:0") }).starts_with("--slots"));
    }
}
