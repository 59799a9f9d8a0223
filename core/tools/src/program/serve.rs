//! The arguments of `nestor serve`, and its line once it listens.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::Result;
use nestor_args::ServeArgs;
use nestor_args::output::print_line;

use crate::input_error;
use crate::model::{device, kind};
use crate::serve::{self, ServeOptions};

/// The environment variable of the key.
const KEY: &str = "NESTOR_API_KEY";

pub fn serve(args: ServeArgs) -> Result<()> {
    let options = ServeOptions {
        model: args.model,
        adapters: args.adapters,
        name: args.name,
        address: address(&args.host, args.port)?,
        key: args.api_key.or_else(|| std::env::var(KEY).ok()).filter(|key| !key.is_empty()),
        slots: args.slots,
        max_tokens: args.max_tokens,
        thinking: args.thinking,
        kind: kind(args.compute.dtype),
        device: device(args.compute.device)?,
    };
    serve::serve(&options, |url| print_line(&format!("serving at {url}")))
}

fn address(host: &str, port: u16) -> Result<SocketAddr> {
    let found = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        input_error!("--host {host}: no address of this machine, such as 127.0.0.1, 0.0.0.0 or localhost")
    })
}
