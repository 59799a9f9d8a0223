//! Parameters as one flat tensor per unit, sharded over ranks, and the optimizer of them or of their adapters.

mod adamw;
mod layout;
mod lora;
mod loss_scale;
mod muon;
mod offload;
mod optimizer;
mod partition;
mod rule;
mod sums;
mod units;

use std::rc::Rc;

pub use layout::{Layout, OUTER, Owned, Param};
pub use lora::{Adapters, LowRank, adapted, projections};
pub use loss_scale::LossScale;
pub use optimizer::{Optimizer, StepReport};
pub use partition::{Partition, Piece, Slice};
pub use rule::{NamedState, Stepping, UpdateRule};
pub use sums::{GradientSums, UnitSum};
pub use units::{HeldUnits, PendingUnit, Ranks, UnitReader};

use crate::recipe::{self, OptimizerName};

impl Stepping {
    /// That of a recipe.
    pub fn of(update: &recipe::Update) -> Self {
        Self { rule: update_rule(&update.optimizer), offload: update.offload }
    }
}

/// The update rule that a recipe names.
pub fn update_rule(optimizer: &recipe::Optimizer) -> Rc<dyn UpdateRule> {
    match optimizer.name {
        OptimizerName::Adamw => Rc::new(adamw::AdamW::of(optimizer)),
        OptimizerName::Muon => Rc::new(muon::Muon::of(optimizer)),
    }
}
