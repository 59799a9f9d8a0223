//! Who this process is among the ranks: torchrun's environment variables.

use std::str::FromStr;

use anyhow::Result;

use crate::input_error;

/// A process among the ranks, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// This process, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// This process among those of its machine, from 0: the number of its GPU.
    pub local_rank: usize,
    /// Where the store listens.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Set before every key of the store.
    pub prefix: String,
    /// The store is served by whoever started the ranks, and not by rank 0.
    pub served: bool,
}

impl Place {
    /// Of this process; a group of one where the variables name none.
    pub fn of_environment() -> Result<Self> {
        let host = std::env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
        let (rank, world) = (variable("RANK", 0)?, variable("WORLD_SIZE", 1)?);
        if rank >= world {
            return Err(input_error!("RANK is {rank}, but WORLD_SIZE is {world}: ranks count from 0"));
        }
        let local_rank = variable("LOCAL_RANK", rank)?;
        let port = variable("MASTER_PORT", 0)?;
        Ok(Self { rank, world, local_rank, host, port, prefix: "nestor".into(), served: false })
    }

    /// Whether this process serves the store.
    pub fn serves(&self) -> bool {
        self.rank == 0 && !self.served
    }
}

/// A number in a variable of the environment, `default` where it is not set.
pub fn variable<T: FromStr>(name: &str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|_| input_error!("the variable {name} must be a number, not `{text}`")),
        Err(_) => Ok(default),
    }
}
