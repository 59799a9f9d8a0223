//! A network's parameters in the compute type: one flat tensor per unit, whole or spread over ranks.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use tch::{Device, Kind, Tensor, no_grad};

use super::{Layout, Partition};
use crate::dist::{Comm, Pending, Solo, exchange};
use crate::error::Stopped;
use crate::recipe::Sharding;
use crate::track::Progress;

/// The ranks that train a network, and how they share it.
#[derive(Debug, Clone)]
pub struct Ranks {
    /// What connects them.
    pub comm: Rc<dyn Comm>,
    /// Whether the weights that passes compute with are spread too, or the optimiser's state alone.
    pub sharding: Sharding,
    /// Numbers do not depend on how many they are, but for the order of sums.
    pub deterministic: bool,
    /// Set by a signal that asks this rank to stop.
    pub stop: Arc<AtomicBool>,
    /// Where passes say how far they are.
    pub progress: Progress,
}

impl Ranks {
    /// The only rank there is.
    pub fn solo(device: Device) -> Self {
        let (stop, progress) = (Arc::default(), Progress::hidden());
        Self { comm: Rc::new(Solo { device }), sharding: Sharding::Full, deterministic: false, stop, progress }
    }

    /// Ends with [`Stopped`] at every rank when a signal asked one of them to stop.
    pub fn check_stop(&self) -> Result<()> {
        let own = self.stop.load(Ordering::Relaxed);
        if exchange(&*self.comm, Ok(own))?.contains(&true) { Err(Stopped.into()) } else { Ok(()) }
    }

    /// Number of ranks W.
    pub fn world(&self) -> usize {
        self.comm.world()
    }

    /// Whether there is only this one, and nothing to be carried.
    pub fn is_alone(&self) -> bool {
        self.comm.is_alone()
    }

    /// How a unit of this layout is dealt to them.
    pub fn partition(&self, layout: &Layout) -> Partition {
        Partition::new(layout.numel(), self.world())
    }

    /// Whether each rank holds a part only of the weights that passes compute with.
    pub fn spread_weights(&self) -> bool {
        !self.is_alone() && self.sharding == Sharding::Full
    }

    /// This rank's part of a whole flat tensor, as a copy where that is not all of it.
    pub fn part_of(&self, layout: &Layout, whole: &Tensor) -> Tensor {
        if self.is_alone() {
            return whole.detach();
        }
        let partition = self.partition(layout);
        no_grad(|| {
            let part = Tensor::zeros([partition.part()], (whole.kind(), whole.device()));
            for piece in partition.pieces(self.comm.rank()) {
                part.narrow(0, piece.part_start, piece.length).copy_(&whole.narrow(0, piece.start, piece.length));
            }
            part
        })
    }

    /// A unit of this layout from every rank's part of it, padded.
    pub fn whole_of(&self, layout: &Layout, part: &Tensor) -> Result<Tensor> {
        if self.is_alone() {
            return Ok(part.shallow_clone());
        }
        let whole = Tensor::empty([self.partition(layout).padded()], (part.kind(), part.device()));
        self.gather_into(layout, &whole, part)?.wait()?;
        Ok(whole)
    }

    /// Starts to fill a padded unit of this layout from every rank's part of it.
    pub fn gather_into(&self, layout: &Layout, whole: &Tensor, part: &Tensor) -> Result<Gathering> {
        let slices = self.partition(layout).slices().map(|s| {
            let whole = whole.narrow(0, s.start, s.length);
            self.comm.all_gather_into(&whole, &part.narrow(0, s.part_start, s.part_length))
        });
        Ok(Gathering(slices.collect::<Result<_>>()?))
    }

    /// Starts to sum a padded unit of this layout over ranks, of which each gets its part.
    pub fn scatter_into(&self, layout: &Layout, part: &Tensor, whole: &Tensor) -> Result<Gathering> {
        let slices = self.partition(layout).slices().map(|s| {
            let whole = whole.narrow(0, s.start, s.length);
            self.comm.reduce_scatter_into(&part.narrow(0, s.part_start, s.part_length), &whole)
        });
        Ok(Gathering(slices.collect::<Result<_>>()?))
    }
}

/// The slices of a unit on their way.
#[derive(Debug)]
pub struct Gathering(Vec<Pending>);

impl Gathering {
    /// Waits for all of them.
    pub fn wait(self) -> Result<()> {
        self.0.into_iter().try_for_each(Pending::wait)
    }
}

/// A network's units as this rank holds them.
#[derive(Debug)]
pub enum Units {
    /// Whole flat tensors; with several ranks padded at their ends.
    Whole(Vec<Tensor>),
    /// This rank's part of each.
    Spread {
        /// Who has the other parts.
        ranks: Ranks,
        /// The parts.
        parts: Vec<Tensor>,
    },
}

impl Units {
    /// What this rank holds of each unit.
    pub fn held(&self) -> &[Tensor] {
        match self {
            Self::Whole(flats) => flats,
            Self::Spread { parts, .. } => parts,
        }
    }

    /// Their type.
    pub fn kind(&self) -> Kind {
        self.held()[0].kind()
    }

    /// Where they live.
    pub fn device(&self) -> Device {
        self.held()[0].device()
    }

    /// Number of units.
    pub fn len(&self) -> usize {
        self.held().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// The whole flat tensors.
    ///
    /// # Errors
    /// When they are spread over ranks.
    pub fn whole(&self) -> Result<&[Tensor]> {
        ensure!(matches!(self, Self::Whole(_)), "the weights are spread over ranks");
        Ok(self.held())
    }

    /// A copy with its own storage.
    pub fn copy(&self, kind: Kind) -> Self {
        let copies = self.held().iter().map(|held| held.detach().to_kind(kind).copy()).collect();
        match self {
            Self::Whole(_) => Self::Whole(copies),
            Self::Spread { ranks, .. } => Self::Spread { ranks: ranks.clone(), parts: copies },
        }
    }
}

/// Hands a pass the units it wants, one after the other, whole. Units that are spread over ranks are gathered, which
/// all ranks must do in the same order; what is handed out is freed when the pass drops it.
#[derive(Debug)]
pub struct Reader<'a> {
    layouts: &'a [Layout],
    units: &'a Units,
    /// A unit that is being gathered before it is wanted.
    ahead: Option<(usize, Tensor, Gathering)>,
}

impl<'a> Reader<'a> {
    /// Reads units of these layouts.
    pub fn new(layouts: &'a [Layout], units: &'a Units) -> Self {
        Self { layouts, units, ahead: None }
    }

    /// Starts to gather the unit that is wanted next, while the pass computes with another.
    pub fn prefetch(&mut self, unit: usize) -> Result<()> {
        if let Units::Spread { ranks, parts } = self.units {
            let partition = ranks.partition(&self.layouts[unit]);
            let part = &parts[unit];
            let whole = Tensor::empty([partition.padded()], (part.kind(), part.device()));
            let gathering = ranks.gather_into(&self.layouts[unit], &whole, part)?;
            self.ahead = Some((unit, whole, gathering));
        }
        Ok(())
    }

    /// A whole unit.
    pub fn unit(&mut self, unit: usize) -> Result<Tensor> {
        if let Units::Whole(flats) = self.units {
            return Ok(flats[unit].shallow_clone());
        }
        if self.ahead.as_ref().is_none_or(|(ahead, ..)| *ahead != unit) {
            self.prefetch(unit)?;
        }
        let (_, whole, gathering) = self.ahead.take().unwrap_or_else(|| unreachable!("it was just begun"));
        gathering.wait()?;
        Ok(whole)
    }
}
