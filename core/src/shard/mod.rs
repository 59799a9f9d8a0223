//! Parameters as one flat tensor per unit, and the optimiser that works on them.

mod layout;

pub use layout::{Layout, Param};
