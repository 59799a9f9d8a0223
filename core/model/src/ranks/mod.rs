//! Ranks: processes that train one network together, one GPU each. They run the same program and find each other by
//! torchrun's environment variables. The rest of the program uses [`Comm`] only.

mod balance;
mod environment;
mod exchange;
pub mod launch;
mod network;
pub mod restart;
mod secret;
mod under_way;
mod watch;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
pub use nestor_torch::Reduce;
use nestor_torch::{Backend, Member, Network, ProcessGroup, Store, StoreAddress, Work};
use secret::{Marks, SECRET};
use tch::{Device, Kind, Tensor, no_grad};

pub use balance::balance;
pub use environment::Rendezvous;
pub use exchange::{agree, exchange, from_root};
pub use secret::Secret;
use watch::Watch;

use crate::failpoint::failpoint;
use crate::input_error;
use crate::recipe::Dist;
use crate::terminal;

/// Collectives over ranks. All ranks must call the same collectives in the same order.
pub trait Comm: std::fmt::Debug {
    /// This process, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks W.
    fn world(&self) -> usize;

    /// True if there is no process group. A group of one rank is not alone: its collectives are real.
    fn is_alone(&self) -> bool {
        false
    }

    /// Device of the tensors of collectives.
    fn device(&self) -> Device;

    /// Starts an all-gather of every rank's `shard` (n) into `whole` (W n): dense tensors of one type.
    fn all_gather_into(&self, whole: &Tensor, shard: &Tensor) -> Result<Pending>;

    /// Starts a reduce-scatter: sums `whole` (W n) over all ranks, of which each gets its `shard` (n). The tensors are dense
    /// and of one type.
    fn reduce_scatter_into(&self, shard: &Tensor, whole: &Tensor) -> Result<Pending>;

    /// Reduces a tensor over all ranks, in place.
    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<()>;

    /// Copies the tensor of rank 0 to all others.
    fn broadcast(&self, tensor: &Tensor) -> Result<()>;

    /// Waits for all ranks.
    fn barrier(&self) -> Result<()>;

    /// Records the error that ends this rank, for the others to report, and aborts their collectives.
    fn abort(&self, reason: &str);
}

/// A collective under way: its tensors must not be used before `wait`.
#[derive(Debug, Default)]
#[must_use = "tensors of a collective must not be used before `wait`"]
pub struct Pending {
    work: Option<(Work, Blame)>,
}

impl Pending {
    /// Waits for the result; on a GPU only the current stream waits.
    pub fn wait(self) -> Result<()> {
        let Some((work, blame)) = self.work else { return Ok(()) };
        let waited = work.wait();
        if blame.blocks || waited.is_err() {
            blame.watch.under_way().forget(blame.number);
        }
        waited.map_err(|error| blame.explain(error))
    }
}

/// Finds the rank that made a collective fail.
#[derive(Debug)]
struct Blame {
    collective: &'static str,
    /// Its number among those that this rank began.
    number: u64,
    /// The collective is done when `wait` returns, or no thread watches it.
    blocks: bool,
    rank: usize,
    watch: Rc<Watch>,
}

impl Blame {
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        self.watch.explain(error.context(format!("{} at rank {}", self.collective, self.rank)))
    }
}

/// The only rank.
#[derive(Debug, Clone, Copy)]
pub struct Solo {
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

    fn all_gather_into(&self, whole: &Tensor, shard: &Tensor) -> Result<Pending> {
        no_grad(|| whole.shallow_clone().f_copy_(shard))?;
        Ok(Pending::default())
    }

    fn reduce_scatter_into(&self, shard: &Tensor, whole: &Tensor) -> Result<Pending> {
        no_grad(|| shard.shallow_clone().f_copy_(whole))?;
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

    fn abort(&self, _reason: &str) {}
}

/// A rank in a c10d process group: NCCL on GPUs, Gloo on CPUs.
#[derive(Debug)]
pub struct C10d {
    rendezvous: Rendezvous,
    device: Device,
    group: ProcessGroup,
    watch: Rc<Watch>,
    aborted: Cell<bool>,
    /// Rank 0 serves it to the others until the last one ends.
    _store: Rc<Store>,
}

impl C10d {
    /// Joins the process group; returns when all ranks have joined.
    pub fn join(backend: Backend, rendezvous: &Rendezvous, device: Device, patience: &Dist) -> Result<Self> {
        let timeout = Duration::from_secs(patience.timeout_s);
        let address = rendezvous.store();
        if rendezvous.rank == 0 && !address.is_loopback() && !rendezvous.secret.is_set() {
            terminal::warn(&format!(
                "warning: whoever reaches the store of all ranks at {}:{} can end the run; set {SECRET} to the same long \
                 random text for all ranks",
                address.host, address.port
            ));
        }
        let store = Store::connect(&address, rendezvous.serves(), timeout).map_err(|error| in_use(error, &address))?;
        let store = Rc::new(store);
        let watch = Rc::new(Watch::start(rendezvous, store.clone(), patience)?);
        let network = network::choose((&address.host, address.port))?;
        let named = matches!(network, Network::Interfaces(_));
        let Rendezvous { rank, world, .. } = *rendezvous;
        let plain = StoreAddress { prefix: rendezvous.prefix.clone(), ..address };
        let write = || Marks::write(Store::connect(&plain, false, timeout)?, &rendezvous.secret, rank);
        let marks = (world > 1).then(write).transpose()?; // a single rank's store may have no port
        let group = ProcessGroup::join(backend, &store, &Member { rank, world, timeout, network });
        let group = group.map_err(|error| match named && format!("{error:#}").contains("Unable to find address") {
            true => error.context(format!("the variable {} must name interfaces with an address", network::INTERFACES)),
            false => match marks.and_then(|marks| marks.others(&rendezvous.secret, world)) {
                Some(others) => error.context(others),
                None => watch.explain(error),
            },
        })?;
        Ok(Self { rendezvous: rendezvous.clone(), device, group, watch, aborted: Cell::new(false), _store: store })
    }

    fn begin(&self, collective: &'static str, start: impl FnOnce(&ProcessGroup) -> Result<Work>) -> Result<Pending> {
        failpoint("before-collective");
        let under_way = self.watch.under_way();
        let Rendezvous { rank, world, .. } = self.rendezvous;
        let (number, blocks) = (under_way.begin(collective), !self.device.is_cuda() || world == 1);
        let blame = Blame { collective, number, blocks, rank, watch: self.watch.clone() };
        match start(&self.group).and_then(|work| Ok((work.progress()?, work))) {
            Ok((progress, work)) => {
                under_way.started(number, progress);
                failpoint("mid-collective");
                Ok(Pending { work: Some((work, blame)) })
            }
            Err(error) => {
                under_way.forget(number);
                Err(blame.explain(error))
            }
        }
    }
}

/// Gives the error of a port that another program has a remedy.
fn in_use(error: anyhow::Error, address: &StoreAddress) -> anyhow::Error {
    match format!("{error:#}").to_lowercase().contains("address already in use") {
        true => input_error!(
            "port {} of {} is in use by another program: set MASTER_PORT to a free one for all ranks",
            address.port,
            address.host
        ),
        false => error,
    }
}

impl Comm for C10d {
    fn rank(&self) -> usize {
        self.rendezvous.rank
    }

    fn world(&self) -> usize {
        self.rendezvous.world
    }

    fn device(&self) -> Device {
        self.device
    }

    fn all_gather_into(&self, whole: &Tensor, shard: &Tensor) -> Result<Pending> {
        self.begin("all-gather", |group| group.all_gather(whole, shard))
    }

    fn reduce_scatter_into(&self, shard: &Tensor, whole: &Tensor) -> Result<Pending> {
        self.begin("reduce-scatter", |group| group.reduce_scatter(shard, whole))
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<()> {
        self.begin("all-reduce", |group| group.all_reduce(tensor, reduce))?.wait()
    }

    fn broadcast(&self, tensor: &Tensor) -> Result<()> {
        self.begin("broadcast", |group| group.broadcast(tensor, 0))?.wait()
    }

    fn barrier(&self) -> Result<()> {
        let ones = Tensor::ones([1], (Kind::Float, self.device));
        self.all_reduce(&ones, Reduce::Sum)?;
        // Reading a number waits for the GPU.
        let _ = ones.double_value(&[0]);
        Ok(())
    }

    fn abort(&self, reason: &str) {
        if self.aborted.replace(true) {
            return;
        }
        self.watch.record_failure(reason);
        // The caller reports the failure itself.
        let _ = self.group.abort();
    }
}

impl Drop for C10d {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.watch.failed() {
            self.watch.record_failure("internal error, see its own message");
        }
        if self.watch.failed() {
            // Collectives under way would keep the group from closing.
            let _ = self.group.abort();
            return;
        }
        // No rank leaves before all are ready to: rank 0 serves the store. An error means that the others are gone.
        self.watch.leave();
        let _ = self.barrier();
    }
}

/// Joins the process group, or returns the only rank. A group of one that a launcher started runs real collectives.
pub fn join(rendezvous: &Rendezvous, device: Device, patience: &Dist) -> Result<Rc<dyn Comm>> {
    if rendezvous.is_alone() {
        return Ok(Rc::new(Solo { device }));
    }
    let backend = if device.is_cuda() { Backend::Nccl } else { Backend::Gloo };
    Ok(Rc::new(C10d::join(backend, rendezvous, device, patience)?))
}
