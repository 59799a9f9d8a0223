//! Plain data between ranks, carried as bytes.

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::Comm;
use crate::error::{InputError, Stopped, message};

/// Why a rank has nothing for the others.
#[derive(Serialize, Deserialize)]
enum Failure {
    /// The user's mistake.
    Input(String),
    /// A signal.
    Stopped,
    /// Anything else.
    Failed(String),
}

impl Failure {
    fn new(error: &anyhow::Error) -> Self {
        match message(error) {
            _ if error.is::<Stopped>() => Self::Stopped,
            text if error.is::<InputError>() => Self::Input(text),
            text => Self::Failed(text),
        }
    }

    /// As the others see it.
    fn told_by(self, rank: usize) -> anyhow::Error {
        match self {
            Self::Input(text) => InputError(text).into(),
            Self::Stopped => Stopped.into(),
            Self::Failed(text) => anyhow!("rank {rank}: {text}"),
        }
    }
}

/// Gives every rank the values of all, in their order. Where a rank failed, all of them fail with its error.
pub fn exchange<T: Serialize + DeserializeOwned>(comm: &dyn Comm, own: Result<T>) -> Result<Vec<T>> {
    if comm.is_alone() {
        return Ok(vec![own?]);
    }
    let outcome: Result<T, Failure> = own.map_err(|error| Failure::new(&error));
    let all = gather(comm, &postcard::to_stdvec(&outcome)?)?;
    let mut values = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let outcome: Result<T, Failure> =
            postcard::from_bytes(bytes).with_context(|| format!("reading what rank {rank} sent"))?;
        values.push(outcome.map_err(|failure| failure.told_by(rank))?);
    }
    Ok(values)
}

/// Ends with an error at every rank where one of them failed.
pub fn agree(comm: &dyn Comm, own: Result<()>) -> Result<()> {
    exchange(comm, own).map(drop)
}

/// Gives every rank what rank 0 makes.
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
