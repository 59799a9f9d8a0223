//! Agents in programs of their own. A worker asks the chat endpoint of this plugin, as it would ask OpenAI's; each request is a step of its
//! episode, and the policy's response is the answer. docs/harness.md is the page for authors.

#![forbid(unsafe_code)]

mod play;
mod outcome;
mod worker;
mod desk;
mod config;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use nestor_plugin::Environment;

use config::TaskList;
pub use config::{Config, Tasks};
use desk::Desk;
pub use play::Play;

/// The shared data: the endpoint and the tasks.
pub struct Harness {
    config: Config,
    tasks: BTreeMap<String, TaskList>,
    desk: Desk,
}

impl Harness {
    fn split(&self, split: &str) -> Result<&TaskList> {
        let known: Vec<&str> = self.tasks.keys().map(String::as_str).collect();
        self.tasks.get(split).ok_or_else(|| match known.is_empty() {
            true => anyhow!("there are no tasks"),
            false => nestor_plugin::unknown_split(split, &known),
        })
    }
}

impl Environment for Harness {
    const ID: &'static str = "harness";
    const DOC: &'static str = "Agents in programs of their own, which ask an OpenAI-compatible endpoint";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<Self> {
        config.check()?;
        Ok(Self { tasks: config.read_tasks()?, desk: Desk::open(&config)?, config })
    }

    fn template(&self) -> String {
        "{{ observation }}".into()
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        Ok(self.split(split)?.count())
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::default())
    }
}

nestor_plugin::export! { environments: [Harness + respond] }
