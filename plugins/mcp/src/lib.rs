//! Environments whose tools are those of an MCP server: a program on this machine, or an address of HTTP. The policy calls the server's
//! tools, and a response without calls is its answer, which ends the episode. docs/mcp.md is the page for authors.
//!
//! Modules are listed in reading order: a module uses those after it, never those before.

#![forbid(unsafe_code)]

mod play;
mod reward;
mod tools;
mod results;
mod session;
mod stdio;
mod background;
mod tasks;
mod config;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use nestor_plugin::Environment;

use background::Background;
pub use config::{Config, Match, Reward, Sessions};
pub use play::Play;
use session::Session;
use tasks::Task;
use tools::Tools;

/// The shared data: the tasks, the server's tools, and the thread that talks to servers.
pub struct Mcp {
    config: Config,
    tasks: BTreeMap<String, Vec<Task>>,
    tools: Tools,
    /// The session that all instances share, or else the one of the start until an instance takes it.
    ready: Mutex<Option<Arc<Session>>>,
    /// Declared last, because the sessions above end on its thread.
    background: Background,
}

impl Mcp {
    fn split(&self, split: &str) -> Result<&[Task]> {
        let known: Vec<&str> = self.tasks.keys().map(String::as_str).collect();
        let tasks = self.tasks.get(split).ok_or_else(|| nestor_plugin::unknown_split(split, &known))?;
        Ok(tasks)
    }

    fn task(&self, split: &str, number: u64) -> Result<&Task> {
        let tasks = self.split(split)?;
        let found = tasks.get(number as usize);
        found.with_context(|| format!("there is no task {number}: split {split} has {}", tasks.len()))
    }

    /// A session that works: the shared one, or one for an instance alone.
    fn session(&self) -> Result<Arc<Session>> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let known = ready.take().filter(|session| session.works());
        if self.config.session != Sessions::Shared {
            drop(ready);
            return known.map_or_else(|| self.open_session(), Ok);
        }
        let session = known.map_or_else(|| self.open_session(), Ok)?;
        *ready = Some(Arc::clone(&session));
        Ok(session)
    }

    fn open_session(&self) -> Result<Arc<Session>> {
        Session::open(&self.config, self.background.handle()).map(Arc::new)
    }
}

impl Environment for Mcp {
    const ID: &'static str = "mcp";
    const DOC: &'static str = "Tasks with the tools of an MCP server, over standard input and output or HTTP";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        let tasks = tasks::read(&config)?;
        let background = Background::start()?;
        let session = Session::open(&config, background.handle())?;
        let tools = Tools::choose(session.tools(config.start_timeout())?, &config)?;
        Ok(Self { config, tasks, tools, ready: Mutex::new(Some(Arc::new(session))), background })
    }

    fn template(&self) -> String {
        "{{ observation }}".into()
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        Ok(self.split(split)?.len() as u64)
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::default())
    }
}

nestor_plugin::export! { environments: [Mcp + respond] }
