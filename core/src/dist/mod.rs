//! Ranks: processes that train one network together, one GPU each. They run the same program and meet by torchrun's
//! environment variables; `Comm` is all that the rest of the program sees of them.

mod environment;
mod exchange;

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
pub use nestor_c10d::Reduce;
use nestor_c10d::{Backend, Group, Member, Store, StoreAddress, Work};
use tch::{Device, Kind, Tensor, no_grad};

pub use environment::{Place, variable};
pub use exchange::{agree, exchange, from_root};

/// What ranks do together. All of them must call the same collectives in the same order.
pub trait Comm: std::fmt::Debug {
    /// This process, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks W.
    fn world(&self) -> usize;

    /// Whether there is nobody to talk to. A group of one rank is not alone: its collectives are real.
    fn is_alone(&self) -> bool {
        false
    }

    /// Where tensors of collectives must lie.
    fn device(&self) -> Device;

    /// Starts to lay every rank's `part` (n) end to end into `whole` (W n): dense tensors of one type.
    fn all_gather_into(&self, whole: &Tensor, part: &Tensor) -> Result<Pending>;

    /// Starts to sum `whole` (W n) over all ranks, of which each gets its `part` (n): dense tensors of one type.
    fn reduce_scatter_into(&self, part: &Tensor, whole: &Tensor) -> Result<Pending>;

    /// Reduces a tensor over all ranks, in place.
    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<()>;

    /// Copies the tensor of rank 0 to all others.
    fn broadcast(&self, tensor: &Tensor) -> Result<()>;

    /// Waits for all ranks.
    fn barrier(&self) -> Result<()>;

    /// Tells the others why this rank ends, and ends their collectives.
    fn abort(&self, last_words: &str);
}

/// A collective under way: its tensors are not to be touched before `wait`.
#[derive(Debug, Default)]
#[must_use = "tensors of a collective are not to be touched before `wait`"]
pub struct Pending {
    work: Option<Work>,
}

impl Pending {
    /// Waits until it is done; on a GPU only the current stream waits.
    pub fn wait(self) -> Result<()> {
        self.work.map_or(Ok(()), Work::wait)
    }
}

/// The only rank there is.
#[derive(Debug, Clone, Copy)]
pub struct Solo {
    /// Where tensors lie.
    pub device: Device,
}

impl Comm for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn device(&self) -> Device {
        self.device
    }

    fn all_gather_into(&self, whole: &Tensor, part: &Tensor) -> Result<Pending> {
        no_grad(|| whole.shallow_clone().f_copy_(part))?;
        Ok(Pending::default())
    }

    fn reduce_scatter_into(&self, part: &Tensor, whole: &Tensor) -> Result<Pending> {
        no_grad(|| part.shallow_clone().f_copy_(whole))?;
        Ok(Pending::default())
    }

    fn all_reduce(&self, _tensor: &Tensor, _reduce: Reduce) -> Result<()> {
        Ok(())
    }

    fn broadcast(&self, _tensor: &Tensor) -> Result<()> {
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self, _last_words: &str) {}
}

/// Ranks that c10d connects: by NCCL on GPUs, by Gloo on CPUs.
#[derive(Debug)]
pub struct C10d {
    place: Place,
    device: Device,
    group: Group,
    /// Rank 0 serves it to the others, so it must live as long as they do.
    _store: Store,
}

impl C10d {
    /// Joins the ranks at a place; returns when all are there. Collectives that take longer than `timeout` fail.
    pub fn join(backend: Backend, place: &Place, device: Device, timeout: Duration) -> Result<Self> {
        let address = StoreAddress { host: place.host.clone(), port: place.port, prefix: place.prefix.clone() };
        let store = Store::connect(&address, place.serves(), timeout)?;
        let group = Group::join(backend, &store, &Member { rank: place.rank, world: place.world, timeout })?;
        Ok(Self { place: place.clone(), device, group, _store: store })
    }

    fn told(&self, collective: &str, work: Result<Work>) -> Result<Pending> {
        let work = work.with_context(|| format!("{collective} at rank {}", self.place.rank))?;
        Ok(Pending { work: Some(work) })
    }
}

impl Comm for C10d {
    fn rank(&self) -> usize {
        self.place.rank
    }

    fn world(&self) -> usize {
        self.place.world
    }

    fn device(&self) -> Device {
        self.device
    }

    fn all_gather_into(&self, whole: &Tensor, part: &Tensor) -> Result<Pending> {
        self.told("all-gather", self.group.all_gather(whole, part))
    }

    fn reduce_scatter_into(&self, part: &Tensor, whole: &Tensor) -> Result<Pending> {
        self.told("reduce-scatter", self.group.reduce_scatter(part, whole))
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<()> {
        self.told("all-reduce", self.group.all_reduce(tensor, reduce))?.wait()
    }

    fn broadcast(&self, tensor: &Tensor) -> Result<()> {
        self.told("broadcast", self.group.broadcast(tensor, 0))?.wait()
    }

    fn barrier(&self) -> Result<()> {
        let ones = Tensor::ones([1], (Kind::Float, self.device));
        self.all_reduce(&ones, Reduce::Sum)?;
        // Reading a number waits for the GPU.
        let _ = ones.double_value(&[0]);
        Ok(())
    }

    fn abort(&self, _last_words: &str) {
        // What failed is told by whoever calls this.
        let _ = self.group.abort();
    }
}

impl Drop for C10d {
    fn drop(&mut self) {
        // Nobody leaves before all are ready to: rank 0 holds the store. An error means that the others are gone.
        let _ = self.barrier();
    }
}

/// The ranks of torchrun's variables, or the only one there is.
pub fn join(place: &Place, device: Device, timeout: Duration) -> Result<Rc<dyn Comm>> {
    if place.world == 1 {
        return Ok(Rc::new(Solo { device }));
    }
    let backend = if device.is_cuda() { Backend::Nccl } else { Backend::Gloo };
    Ok(Rc::new(C10d::join(backend, place, device, timeout)?))
}
