//! Parameters as one flat tensor per unit, and the optimiser that works on them or on their adapters.

mod adamw;
mod layout;
mod lora;
mod partition;
mod sums;
mod units;

pub use adamw::{AdamW, Optimizer, StepReport};
pub use layout::{Layout, Param};
pub use lora::Adapters;
pub use partition::{Partition, Piece, Slice};
pub use sums::GradientSums;
pub use units::{Gathering, Ranks, Reader, Units};
