//! Parameters as one flat tensor per unit, sharded over ranks, and the optimizer of them or of their adapters.

mod adamw;
mod layout;
mod lora;
mod loss_scale;
mod partition;
mod sums;
mod units;

pub use adamw::{AdamW, Optimizer, StepReport};
pub use layout::{Layout, Param};
pub use lora::{Adapters, LowRank, projections};
pub use loss_scale::LossScale;
pub use partition::{Partition, Piece, Slice};
pub use sums::{GradientSums, UnitSum};
pub use units::{HeldUnits, PendingUnit, Ranks, UnitReader};
