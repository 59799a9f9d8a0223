//! Exchanges plain data between ranks, serialised to bytes.

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::Comm;
use crate::error::{Diverged, EnvironmentFailed, InputError, Stopped, message};

/// Reason why a rank has no value for the others.
#[derive(Serialize, Deserialize)]
enum Failure {
    /// Invalid input.
    Input(String),
    /// Stopped by a signal.
    Stopped,
    /// An environment failed once too often.
    Environment(String),
    /// Training has spoilt a network.
    Diverged {
        critic: bool,
        message: String,
    },
    Failed(String),
}

impl Failure {
    fn new(error: &anyhow::Error) -> Self {
        let diverged = error.downcast_ref::<Diverged>().map(|diverged| diverged.critic);
        match message(error) {
            _ if error.is::<Stopped>() => Self::Stopped,
            text if error.is::<InputError>() => Self::Input(text),
            text if error.is::<EnvironmentFailed>() => Self::Environment(text),
            text => match diverged {
                Some(critic) => Self::Diverged { critic, message: text },
                None => Self::Failed(text),
            },
        }
    }

    /// The error at another rank.
    fn of_rank(self, rank: usize) -> anyhow::Error {
        match self {
            Self::Input(text) => InputError(text).into(),
            Self::Stopped => Stopped.into(),
            Self::Environment(text) => EnvironmentFailed(format!("rank {rank}: {text}")).into(),
            Self::Diverged { critic, message } => {
                Diverged { critic, message: format!("rank {rank}: {message}") }.into()
            }
            Self::Failed(text) => anyhow!("rank {rank}: {text}"),
        }
    }
}

/// Returns the values of all ranks, in rank order, at every rank. If one rank failed, all fail with its error.
pub fn exchange<T: Serialize + DeserializeOwned>(comm: &dyn Comm, own: Result<T>) -> Result<Vec<T>> {
    if comm.is_alone() {
        return Ok(vec![own?]);
    }
    let outcome: Result<T, Failure> = own.map_err(|error| Failure::new(&error));
    let all = gather(comm, &postcard::to_stdvec(&outcome)?)?;
    let mut values = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let outcome: Result<T, Failure> =
            postcard::from_bytes(bytes).with_context(|| format!("reading the data of rank {rank}"))?;
        values.push(outcome.map_err(|failure| failure.of_rank(rank))?);
    }
    Ok(values)
}

/// Returns an error at every rank if one of them failed.
pub fn agree(comm: &dyn Comm, own: Result<()>) -> Result<()> {
    exchange(comm, own).map(drop)
}

/// Returns at every rank the value that rank 0 makes.
pub fn from_root<T: Serialize + DeserializeOwned>(comm: &dyn Comm, make: impl FnOnce() -> Result<T>) -> Result<T> {
    let own = (comm.rank() == 0).then(make).transpose();
    let first = exchange(comm, own)?.into_iter().next().flatten();
    first.context("rank 0 sent nothing")
}

/// The bytes of every rank.
fn gather(comm: &dyn Comm, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (world, device) = (comm.world(), comm.device());
    let length = Tensor::from_slice(&[own.len() as i64]).to_device(device);
    let lengths = Tensor::zeros([world as i64], (Kind::Int64, device));
    comm.all_gather_into(&lengths, &length)?.wait()?;
    let lengths = Vec::<i64>::try_from(lengths.to_device(Device::Cpu))?;
    let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
    let part = Tensor::zeros([longest], (Kind::Uint8, Device::Cpu));
    part.narrow(0, 0, own.len() as i64).f_copy_(&Tensor::from_slice(own))?;
    let whole = Tensor::zeros([longest * world as i64], (Kind::Uint8, device));
    comm.all_gather_into(&whole, &part.to_device(device))?.wait()?;
    let whole = whole.to_device(Device::Cpu);
    let mut all = Vec::with_capacity(world);
    for (rank, length) in lengths.into_iter().enumerate() {
        ensure!((0..=longest).contains(&length), "rank {rank} sent {length} bytes");
        all.push(Vec::<u8>::try_from(whole.narrow(0, rank as i64 * longest, length))?);
    }
    Ok(all)
}
