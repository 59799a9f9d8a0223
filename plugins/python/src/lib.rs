//! Environments in Python. A gym-style class, or a reward function, is played in worker processes: many environments in
//! each, one request at a time. docs/python.md is the page for authors; `worker.py` is the Python side.
//!
//! A worker that hangs is killed after `timeout_s`, and one that died is started again. Episodes are the same whenever they
//! are played again, so the other environments of a lost worker play theirs again from the start.

#![forbid(unsafe_code)]

mod batch;
mod config;
pub mod frame;
mod play;
#[cfg(test)]
mod odd_tests;
mod pool;
pub mod reply;
mod rows;
#[cfg(test)]
mod tests;
mod worker;

use anyhow::{Result, anyhow, ensure};
use batch::Batch;
pub use config::Config;
use config::Setup;
use nestor_plugin::Environment;
pub use play::Play;
use pool::Pool;
use reply::{Body, Description};
use worker::Fault;

/// Tasks of a class that does not count them: all that differs is the seed.
const TASKS: [(&str, u64); 2] = [("train", 1000), ("eval", 100)];

/// The shared data: the workers, and what the class can do.
pub struct PythonEnv {
    pool: Pool,
    class: Description,
    /// With `batch: true`: the completions that wait to be scored together.
    batch: Option<Batch>,
}

impl Environment for PythonEnv {
    const ID: &'static str = "python";
    const DOC: &'static str = "Environments in Python: a gym-style class or a reward function";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<PythonEnv> {
        let (pool, class) = Pool::open(Setup::new(config)?)?;
        let batch = pool.setup().batch.then(Batch::default);
        Ok(PythonEnv { pool, class, batch })
    }

    fn template(&self) -> String {
        let answer = if self.class.has("parse") { "" } else { include_str!("answer.txt") };
        let own = || nestor_plugin::unless_chat(&format!("{}{answer}", include_str!("prompt.txt")));
        self.class.template.clone().unwrap_or_else(own)
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        let count = match self.pool.tasks(split) {
            Ok(Body::Count(Some(count))) => count,
            Ok(Body::Count(None)) => {
                let known = TASKS.map(|(name, _)| name);
                let found = TASKS.iter().find(|(name, _)| *name == split);
                found.ok_or_else(|| nestor_plugin::unknown_split(split, &known))?.1
            }
            Ok(_) => return Err(anyhow!("the worker replied to `tasks` with something else")),
            Err(Fault::Raised(message)) => return Err(anyhow!("`{}`: {message}", self.pool.setup().class)),
            Err(Fault::Lost(error)) => return Err(error),
        };
        ensure!(count > 0, "`{}` has no tasks in split `{split}`", self.pool.setup().class);
        Ok(count)
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::new(self.pool.seat()))
    }

    fn has_expert(&self) -> bool {
        self.class.has("expert")
    }

    fn has_snapshots(&self) -> bool {
        self.class.has("save") && self.class.has("load")
    }

    fn takes_responses(&self) -> bool {
        self.class.has("tools")
    }
}

nestor_plugin::export! { environments: [PythonEnv + expert + snapshot + respond] }
