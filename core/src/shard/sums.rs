//! Where a backward pass leaves what it finds.

use tch::{Tensor, no_grad};

use super::{Adapters, Optimizer};

/// The gradient sums of a mini-batch, of all weights or of adapters alone.
#[derive(Debug)]
pub struct GradientSums<'a> {
    /// One per unit, or with adapters one per block.
    sums: &'a mut [Tensor],
    /// Those that count as zero.
    stale: &'a mut [bool],
    /// The adapters, and their A and B.
    adapters: Option<(&'a Adapters, &'a [Tensor])>,
}

impl<'a> GradientSums<'a> {
    /// Those of an optimiser, whose masters are the adapters' where there are any.
    pub fn new(optimizer: &'a mut Optimizer, adapters: Option<&'a Adapters>) -> Self {
        let Optimizer { grads, masters, stale, .. } = optimizer;
        Self { sums: grads, stale, adapters: adapters.map(|adapters| (adapters, &masters[..])) }
    }

    /// The flat sum of the first unit, where that is trained.
    pub fn outer(&mut self) -> Option<&mut Tensor> {
        if self.adapters.is_some() {
            return None;
        }
        let sum = self.sums.first_mut()?;
        if std::mem::take(&mut self.stale[0]) {
            let _ = sum.zero_();
        }
        Some(sum)
    }

    /// Adds the gradients of a block's tensors, which lie end to end over its flat tensor.
    pub fn add_block(&mut self, block: usize, gradients: &[Tensor]) {
        if let Some((adapters, masters)) = self.adapters {
            if std::mem::take(&mut self.stale[block]) {
                let _ = self.sums[block].zero_();
            }
            return adapters.project(block, gradients, &masters[block], &self.sums[block]);
        }
        let first = std::mem::take(&mut self.stale[1 + block]);
        no_grad(|| {
            let mut offset = 0;
            for gradient in gradients {
                let numel = gradient.numel() as i64;
                let (mut sum, gradient) = (self.sums[1 + block].narrow(0, offset, numel), gradient.reshape([numel]));
                if first {
                    sum.copy_(&gradient);
                } else {
                    let _ = sum.g_add_(&gradient);
                }
                offset += numel;
            }
        });
    }
}
