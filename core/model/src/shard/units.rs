//! A network's parameters in the compute type: one flat tensor per unit, whole or sharded over ranks.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use tch::{Device, Kind, Tensor, no_grad};

use super::{Layout, Partition};
use crate::error::Stopped;
use crate::progress::Progress;
use crate::ranks::{Comm, Pending, Solo, exchange};
use crate::recipe::Sharding;
use crate::stop_notice::StopNotice;

/// The ranks that train a network, and how they shard it.
#[derive(Debug, Clone)]
pub struct Ranks {
    pub comm: Rc<dyn Comm>,
    /// Shards the compute weights too, or the optimizer state alone.
    pub sharding: Sharding,
    /// Numbers do not depend on the number of ranks, but for the order of sums.
    pub deterministic: bool,
    /// Set by a signal that asks this rank to stop.
    pub stop: Arc<AtomicBool>,
    /// Passes report their progress here.
    pub progress: Progress,
    /// The run reports here what the answer to a signal names.
    pub notice: StopNotice,
}

impl Ranks {
    /// A single rank.
    pub fn solo(device: Device) -> Self {
        Self {
            comm: Rc::new(Solo { device }),
            sharding: Sharding::Full,
            deterministic: false,
            stop: Arc::default(),
            progress: Progress::hidden(),
            notice: StopNotice::default(),
        }
    }

    /// Ends with [`Stopped`] at every rank when a signal asked one of them to stop.
    pub fn check_stop(&self) -> Result<()> {
        self.check_stop_or(false).map(drop)
    }

    /// As [`Self::check_stop`], with a question of its own in the same exchange: true if one rank asks for it.
    pub fn check_stop_or(&self, asked: bool) -> Result<bool> {
        let own = (self.stop.load(Ordering::Relaxed), asked);
        let all = exchange(&*self.comm, Ok(own))?;
        if all.iter().any(|(stop, _)| *stop) { Err(Stopped.into()) } else { Ok(all.iter().any(|(_, asked)| *asked)) }
    }

    /// Number of ranks W.
    pub fn world(&self) -> usize {
        self.comm.world()
    }

    /// Returns true if this is the only rank, so that nothing is communicated.
    pub fn is_alone(&self) -> bool {
        self.comm.is_alone()
    }

    /// The sharding of a unit of this layout.
    pub fn partition(&self, layout: &Layout) -> Partition {
        layout.partition(self.world())
    }

    /// Returns true if each rank holds only a shard of the compute weights.
    pub fn shards_weights(&self) -> bool {
        !self.is_alone() && self.sharding == Sharding::Full
    }

    /// This rank's shard of a whole flat tensor; a copy, unless it is all of it.
    pub fn shard_of(&self, layout: &Layout, whole: &Tensor) -> Tensor {
        if self.is_alone() {
            return whole.detach();
        }
        let partition = self.partition(layout);
        no_grad(|| {
            let shard = Tensor::zeros([partition.shard_numel()], (whole.kind(), whole.device()));
            for piece in partition.pieces(self.comm.rank()) {
                shard.narrow(0, piece.shard_start, piece.length).copy_(&whole.narrow(0, piece.start, piece.length));
            }
            shard
        })
    }

    /// All-gathers a unit of this layout from the ranks' shards; padded.
    pub fn whole_of(&self, layout: &Layout, shard: &Tensor) -> Result<Tensor> {
        if self.is_alone() {
            return Ok(shard.shallow_clone());
        }
        let whole = Tensor::empty([self.partition(layout).padded()], (shard.kind(), shard.device()));
        self.gather_into(layout, &whole, shard)?.wait()?;
        Ok(whole)
    }

    /// Starts to all-gather a padded unit of this layout from the ranks' shards.
    pub fn gather_into(&self, layout: &Layout, whole: &Tensor, shard: &Tensor) -> Result<PendingUnit> {
        let slices = self.partition(layout).slices().map(|s| {
            let whole = whole.narrow(0, s.start, s.length);
            self.comm.all_gather_into(&whole, &shard.narrow(0, s.shard_start, s.shard_length))
        });
        Ok(PendingUnit(slices.collect::<Result<_>>()?))
    }

    /// Starts to reduce-scatter a padded unit of this layout: sums it over the ranks, each of which gets its shard.
    pub fn scatter_into(&self, layout: &Layout, shard: &Tensor, whole: &Tensor) -> Result<PendingUnit> {
        let slices = self.partition(layout).slices().map(|s| {
            let whole = whole.narrow(0, s.start, s.length);
            self.comm.reduce_scatter_into(&shard.narrow(0, s.shard_start, s.shard_length), &whole)
        });
        Ok(PendingUnit(slices.collect::<Result<_>>()?))
    }
}

/// Collectives under way for the slices of a unit.
#[derive(Debug)]
pub struct PendingUnit(Vec<Pending>);

impl PendingUnit {
    /// Waits for all slices.
    pub fn wait(self) -> Result<()> {
        self.0.into_iter().try_for_each(Pending::wait)
    }
}

/// The units of a network as this rank holds them.
#[derive(Debug)]
pub enum HeldUnits {
    /// Whole flat tensors; with several ranks padded at their ends.
    Whole(Vec<Tensor>),
    /// This rank's shard of each.
    Sharded {
        /// The ranks that hold the other shards.
        ranks: Ranks,
        shards: Vec<Tensor>,
    },
}

impl HeldUnits {
    /// The tensors that this rank holds, whole units or shards.
    pub fn held(&self) -> &[Tensor] {
        match self {
            Self::Whole(flats) => flats,
            Self::Sharded { shards, .. } => shards,
        }
    }

    /// Type of the tensors.
    pub fn kind(&self) -> Kind {
        self.held()[0].kind()
    }

    /// Device of the tensors.
    pub fn device(&self) -> Device {
        self.held()[0].device()
    }

    /// Number of units.
    pub fn len(&self) -> usize {
        self.held().len()
    }

    pub fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// The whole flat tensors.
    ///
    /// # Errors
    /// When they are sharded over ranks.
    pub fn whole(&self) -> Result<&[Tensor]> {
        ensure!(matches!(self, Self::Whole(_)), "the weights are sharded over ranks");
        Ok(self.held())
    }

    /// The same tensors, the first `count` of them copies with their own storage.
    pub fn copy_first(&self, count: usize) -> Self {
        self.with(|unit, held| if unit < count { held.detach().copy() } else { held.shallow_clone() })
    }

    /// The same tensors under another owner.
    pub fn shallow_clone(&self) -> Self {
        self.with(|_, held| held.shallow_clone())
    }

    fn with(&self, make: impl Fn(usize, &Tensor) -> Tensor) -> Self {
        let made = self.held().iter().enumerate().map(|(unit, held)| make(unit, held)).collect();
        match self {
            Self::Whole(_) => Self::Whole(made),
            Self::Sharded { ranks, .. } => Self::Sharded { ranks: ranks.clone(), shards: made },
        }
    }
}

/// Reads the units of a network one after the other, whole. Sharded units are all-gathered, so all ranks must read them in
/// the same order; a gathered unit is freed when its reader drops it.
#[derive(Debug)]
pub struct UnitReader<'a> {
    layouts: &'a [Layout],
    units: &'a HeldUnits,
    /// A unit that is being gathered ahead of its use.
    ahead: Option<(usize, Tensor, PendingUnit)>,
}

impl<'a> UnitReader<'a> {
    /// Reads units of these layouts.
    pub fn new(layouts: &'a [Layout], units: &'a HeldUnits) -> Self {
        Self { layouts, units, ahead: None }
    }

    /// Starts to gather the unit that is needed next, while the pass computes with another.
    pub fn prefetch(&mut self, unit: usize) -> Result<()> {
        if let HeldUnits::Sharded { ranks, shards } = self.units {
            let partition = ranks.partition(&self.layouts[unit]);
            let shard = &shards[unit];
            let whole = Tensor::empty([partition.padded()], (shard.kind(), shard.device()));
            let pending = ranks.gather_into(&self.layouts[unit], &whole, shard)?;
            self.ahead = Some((unit, whole, pending));
        }
        Ok(())
    }

    /// A unit, whole.
    pub fn unit(&mut self, unit: usize) -> Result<Tensor> {
        if let HeldUnits::Whole(flats) = self.units {
            return Ok(flats[unit].shallow_clone());
        }
        if self.ahead.as_ref().is_none_or(|(ahead, ..)| *ahead != unit) {
            self.prefetch(unit)?;
        }
        let (_, whole, pending) = self.ahead.take().unwrap_or_else(|| unreachable!("it was just prefetched"));
        pending.wait()?;
        Ok(whole)
    }
}
