//! The gradient sums of a mini-batch, to which a backward pass adds block by block.

use anyhow::Result;
use tch::{Kind, Tensor, no_grad};

use super::layout::Layout;
use super::optimizer::Optimizer;
use super::units::{PendingUnit, Ranks};

/// Gradient sums of the trained units, or of adapters alone, which take the place of the blocks' units. With several ranks a unit's gradient is first summed in a whole
/// float32 tensor, which is reduce-scattered while the next block computes.
#[derive(Debug)]
pub struct GradientSums<'a> {
    /// This rank's shards, one per unit, or with adapters one per block.
    sums: &'a mut [Tensor],
    /// Sums to be treated as zero, see [`Optimizer`].
    stale: &'a mut [bool],
    /// Layouts of the trained units.
    layouts: &'a [Layout],
    /// Only the blocks' adapters are trained.
    adapters_only: bool,
    ranks: &'a Ranks,
    /// The first unit's gradient, whole, with several ranks.
    outer: Option<Tensor>,
    pending: Option<PendingReduction>,
}

/// The flat float32 sum of a unit's gradients.
#[derive(Debug)]
pub struct UnitSum {
    pub flat: Tensor,
    /// The sum holds nothing yet: the first gradient overwrites it.
    pub first: bool,
}

/// A gradient that is being reduced over ranks.
#[derive(Debug)]
struct PendingReduction {
    /// Number of the sum.
    index: usize,
    /// This rank's shard, to be added to its sum; none where the reduction writes to the sum itself.
    shard: Option<Tensor>,
    unit: PendingUnit,
}

impl<'a> GradientSums<'a> {
    /// The sums of an optimizer of all weights, or of the adapters alone.
    pub fn new(optimizer: &'a mut Optimizer, layouts: &'a [Layout], adapters_only: bool, ranks: &'a Ranks) -> Self {
        let Optimizer { grads, stale, .. } = optimizer;
        Self { sums: grads, stale, layouts, adapters_only, ranks, outer: None, pending: None }
    }

    /// Returns true if the first unit is trained.
    pub fn trains_outer(&self) -> bool {
        !self.adapters_only
    }

    /// The flat gradient of the first unit, to be added to; none where the unit is not trained.
    pub fn outer(&mut self) -> Option<&mut Tensor> {
        if !self.trains_outer() {
            return None;
        }
        if !self.ranks.is_alone() {
            return Some(self.outer.get_or_insert_with(|| zeros(self.ranks, &self.layouts[0], &self.sums[0])));
        }
        if std::mem::take(&mut self.stale[0]) {
            let _ = self.sums[0].zero_();
        }
        self.sums.first_mut()
    }

    /// The sum of a unit's gradients, to which the caller adds them before [`Self::reduce`].
    pub fn unit(&mut self, unit: usize) -> UnitSum {
        let index = self.index(unit);
        if self.ranks.is_alone() {
            let first = std::mem::take(&mut self.stale[index]);
            return UnitSum { flat: self.sums[index].shallow_clone(), first };
        }
        let layout = &self.layouts[index];
        let (numel, padded) = (layout.numel(), self.ranks.partition(layout).padded());
        let flat = Tensor::empty([padded], (Kind::Float, self.sums[index].device()));
        let _ = flat.narrow(0, numel, padded - numel).zero_();
        UnitSum { flat, first: true }
    }

    /// Starts to reduce a unit's sum over the ranks, where there are several.
    pub fn reduce(&mut self, unit: usize, sum: UnitSum) -> Result<()> {
        if self.ranks.is_alone() { Ok(()) } else { self.scatter(self.index(unit), sum.flat) }
    }

    /// Takes part in a unit's reduction with a gradient of zero.
    pub fn add_nothing(&mut self, unit: usize) -> Result<()> {
        if self.ranks.is_alone() {
            return Ok(());
        }
        let index = self.index(unit);
        let whole = zeros(self.ranks, &self.layouts[index], &self.sums[index]);
        self.scatter(index, whole)
    }

    /// Ends a pass: waits until the sums hold the gradients of all ranks.
    pub fn finish(mut self) -> Result<()> {
        if !self.ranks.is_alone() {
            self.outer();
            if let Some(whole) = self.outer.take() {
                self.scatter(0, whole)?;
            }
            self.settle()?;
        }
        Ok(())
    }

    fn index(&self, unit: usize) -> usize {
        if self.adapters_only { unit - 1 } else { unit }
    }

    /// Starts to reduce a gradient over ranks, once the one before is done.
    fn scatter(&mut self, index: usize, whole: Tensor) -> Result<()> {
        self.settle()?;
        let sum = &self.sums[index];
        let first = std::mem::take(&mut self.stale[index]);
        let shard = (!first).then(|| sum.empty_like());
        let unit = self.ranks.scatter_into(&self.layouts[index], shard.as_ref().unwrap_or(sum), &whole)?;
        self.pending = Some(PendingReduction { index, shard, unit });
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if let Some(PendingReduction { index, shard, unit }) = self.pending.take() {
            unit.wait()?;
            if let Some(shard) = shard {
                let _ = no_grad(|| self.sums[index].g_add_(&shard));
            }
        }
        Ok(())
    }
}

/// A whole unit of zeros on the device of the sum.
fn zeros(ranks: &Ranks, layout: &Layout, sum: &Tensor) -> Tensor {
    Tensor::zeros([ranks.partition(layout).padded()], (Kind::Float, sum.device()))
}
