//! Parameters as one flat tensor per unit, and the optimiser that works on them.

mod adamw;
mod layout;

pub use adamw::{AdamW, Optimizer, StepReport};
pub use layout::{Layout, Param};
