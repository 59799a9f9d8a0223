//! Environments of an OpenEnv server (`openenv` on PyPI), played over its WebSocket protocol.
//!
//! Each instance has a session of its own: one WebSocket. [`wire`] has the messages, [`view`] reads observations by the
//! config's paths, [`picture`] their images, and [`action`] makes actions of responses; these four do no input or output.
//! [`connection`] has the socket and its deadlines, and [`play`] the episodes. `docs/openenv.md` describes the config.

#![forbid(unsafe_code)]

pub mod action;
mod address;
pub mod config;
mod connection;
mod http;
mod picture;
mod play;
#[cfg(test)]
mod tests;
pub mod view;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use anyhow::Result;
use nestor_plugin::Environment;

use crate::action::Actions;
use crate::address::Address;
use crate::config::Config;
use crate::play::Play;
use crate::view::View;

/// The shared data: the server's address, its form of actions, and the config's paths.
pub struct OpenEnv {
    config: Config,
    address: Address,
    view: View,
    actions: Actions,
    /// Number of open sessions.
    open_sessions: Arc<AtomicUsize>,
}

impl Environment for OpenEnv {
    const ID: &'static str = "openenv";
    const DOC: &'static str = "Environments of an OpenEnv server, over its WebSocket protocol";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        let address = Address::parse(&config.url)?;
        let view = View::new(&config)?;
        let actions = Actions::new(&config, http::learn(&address, &config)?);
        Ok(Self { config, address, view, actions, open_sessions: Arc::default() })
    }

    fn template(&self) -> String {
        if let Some(template) = &self.config.template {
            return template.clone();
        }
        let answer = if self.config.raw { include_str!("answer_raw.txt") } else { include_str!("answer_tagged.txt") };
        nestor_plugin::unless_chat(&format!("{}{answer}", include_str!("prompt.txt")))
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        Ok(self.config.split(split)?.0)
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::default())
    }

    fn has_expert(&self) -> bool {
        self.view.has_expert()
    }
}

nestor_plugin::export! { environments: [OpenEnv + expert] }
