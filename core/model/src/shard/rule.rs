//! The seam of optimizers: an [`UpdateRule`] says which state there is, and makes the step.

use std::fmt::Debug;
use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;

use super::layout::Layout;
use super::units::Ranks;
use crate::recipe::Offload;

/// The rule of an optimizer.
pub trait UpdateRule: Debug {
    /// The names of its state, under which checkpoints store it, each with the parameters of a unit that have one.
    fn state(&self, unit: &Layout) -> Vec<(&'static str, Layout)>;

    /// Its state in words, for the tables of memory.
    fn state_in_words(&self) -> &'static str;

    /// Makes one step. Called at all ranks alike.
    fn step(&self, step: &Step) -> Result<()>;

    /// Elements of its state for a unit.
    fn state_numel(&self, unit: &Layout) -> i64 {
        self.state(unit).iter().map(|(_, layout)| layout.params_numel()).sum()
    }
}

/// An update rule, and the place of its tensors between two steps.
#[derive(Debug, Clone)]
pub struct Stepping {
    pub rule: Rc<dyn UpdateRule>,
    pub offload: Offload,
}

impl From<Rc<dyn UpdateRule>> for Stepping {
    fn from(rule: Rc<dyn UpdateRule>) -> Self {
        Self { rule, offload: Offload::None }
    }
}

/// A named tensor of an optimizer's state: of each unit, or of a part of it.
#[derive(Debug)]
pub struct NamedState {
    pub name: &'static str,
    /// The parameters that have it, unit by unit.
    pub layouts: Vec<Layout>,
    /// This rank's tensor of each layout, float32.
    pub shards: Vec<Tensor>,
}

/// The tensors of one step; lists have one entry for each unit.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    pub units: &'a [Layout],
    pub ranks: &'a Ranks,
    /// Learning rate.
    pub lr: f64,
    /// Number of steps, with this one.
    pub steps: u64,
    /// Divisor of the gradients, applied first.
    pub divisor: f64,
    /// This rank's shards of the parameters, changed in place.
    pub params: &'a [Tensor],
    /// May be overwritten.
    pub grads: &'a [Tensor],
    /// In the order of [`UpdateRule::state`], changed in place.
    pub state: &'a [NamedState],
    /// Get the new parameters, each in the copy's own type.
    pub copies: Option<&'a [Tensor]>,
}
