//! Where a backward pass leaves what it finds: in this rank's part of the gradient sums of a mini-batch.

use anyhow::Result;
use tch::{Kind, Tensor, no_grad};

use super::units::Gathering;
use super::{Adapters, Layout, Optimizer, Ranks};

/// The gradient sums of a mini-batch, of all weights or of adapters alone. Among ranks a unit's gradient is laid
/// into a whole float32 tensor of its own first, which is then reduced over ranks while the next block is computed.
#[derive(Debug)]
pub struct GradientSums<'a> {
    /// This rank's part, one per unit, or with adapters one per block.
    sums: &'a mut [Tensor],
    /// Those that count as zero.
    stale: &'a mut [bool],
    /// Where what is trained lies in its units.
    layouts: &'a [Layout],
    adapters: Option<&'a Adapters>,
    ranks: &'a Ranks,
    /// The first unit's gradient, among ranks.
    outer: Option<Tensor>,
    in_flight: Option<InFlight>,
}

/// A gradient that is being reduced over ranks.
#[derive(Debug)]
struct InFlight {
    place: usize,
    /// This rank's part, to be added to its sum; none where that is what is being written.
    part: Option<Tensor>,
    gathering: Gathering,
}

impl<'a> GradientSums<'a> {
    /// Those of an optimiser, whose master_weights are the adapters' where there are any.
    pub fn new(
        optimizer: &'a mut Optimizer,
        layouts: &'a [Layout],
        adapters: Option<&'a Adapters>,
        ranks: &'a Ranks,
    ) -> Self {
        let Optimizer { grads, stale, .. } = optimizer;
        Self { sums: grads, stale, layouts, adapters, ranks, outer: None, in_flight: None }
    }

    /// Whether the first unit is trained.
    pub fn trains_outer(&self) -> bool {
        self.adapters.is_none()
    }

    /// The flat gradient of the first unit, to be added to, where that is trained.
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

    /// Adds the gradients of a block's tensors, which lie end to end over its flat tensor.
    pub fn add_block(&mut self, block: usize, gradients: &[Tensor]) -> Result<()> {
        let place = self.place(block);
        if !self.ranks.is_alone() {
            let layout = &self.layouts[place];
            let whole = match self.adapters {
                Some(adapters) => {
                    let whole = zeros(self.ranks, layout, &self.sums[place]);
                    adapters.project(block, gradients, &whole);
                    whole
                }
                None => {
                    let padded = self.ranks.partition(layout).padded();
                    let whole = Tensor::empty([padded], (Kind::Float, self.sums[place].device()));
                    let _ = whole.narrow(0, layout.numel(), padded - layout.numel()).zero_();
                    add(&whole, gradients, true);
                    whole
                }
            };
            return self.scatter(place, whole);
        }
        let first = std::mem::take(&mut self.stale[place]);
        let sum = &mut self.sums[place];
        match self.adapters {
            Some(adapters) => {
                if first {
                    let _ = sum.zero_();
                }
                adapters.project(block, gradients, sum);
            }
            None => add(sum, gradients, first),
        }
        Ok(())
    }

    /// Takes part in a block's reduction with a gradient of zero.
    pub fn add_nothing(&mut self, block: usize) -> Result<()> {
        let place = self.place(block);
        let whole = zeros(self.ranks, &self.layouts[place], &self.sums[place]);
        self.scatter(place, whole)
    }

    /// Ends a pass: all sums hold what the ranks found.
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

    fn place(&self, block: usize) -> usize {
        if self.adapters.is_some() { block } else { 1 + block }
    }

    /// Starts to reduce a gradient over ranks, after the one before.
    fn scatter(&mut self, place: usize, whole: Tensor) -> Result<()> {
        self.settle()?;
        let sum = &self.sums[place];
        let first = std::mem::take(&mut self.stale[place]);
        let part = (!first).then(|| sum.empty_like());
        let gathering = self.ranks.scatter_into(&self.layouts[place], part.as_ref().unwrap_or(sum), &whole)?;
        self.in_flight = Some(InFlight { place, part, gathering });
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if let Some(InFlight { place, part, gathering }) = self.in_flight.take() {
            gathering.wait()?;
            if let Some(part) = part {
                let _ = no_grad(|| self.sums[place].g_add_(&part));
            }
        }
        Ok(())
    }
}

/// A whole unit of zeros where the sum lies.
fn zeros(ranks: &Ranks, layout: &Layout, sum: &Tensor) -> Tensor {
    Tensor::zeros([ranks.partition(layout).padded()], (Kind::Float, sum.device()))
}

/// Lays gradients end to end into a flat tensor, in place of what it holds or in addition to it.
fn add(flat: &Tensor, gradients: &[Tensor], first: bool) {
    no_grad(|| {
        let mut offset = 0;
        for gradient in gradients {
            let numel = gradient.numel() as i64;
            let (mut place, gradient) = (flat.narrow(0, offset, numel), gradient.reshape([numel]));
            if first {
                place.copy_(&gradient);
            } else {
                let _ = place.g_add_(&gradient);
            }
            offset += numel;
        }
    });
}
