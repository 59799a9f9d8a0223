//! Comparison of groups of runs: their success on one panel of tasks as means over seeds with 95 % intervals, and in
//! words whether a difference exceeds replicate noise.
//!
//! [`runs`] reads run directories and record files. [`compare`] groups the runs by recipe, refuses what is not
//! comparable by name, and computes a [`Comparison`]. [`Report`] turns it into tables for a terminal, Markdown or a
//! page. `docs/compare.md` defines every column.

#![forbid(unsafe_code)]

mod bootstrap;
mod comparable;
mod compare;
mod comparison;
mod error;
mod files;
mod group;
mod measures;
mod recipe;
mod record;
mod report;
mod stats;
mod table;
mod words;

pub use crate::compare::{Options, compare};
pub use crate::comparison::{Comparison, Difference, GroupResult, Used, Window};
pub use crate::error::{CompareError, ReadError};
pub use crate::files::{expand, recipe, rows, run_of, text};
pub use crate::measures::{Best, Reached, best};
pub use crate::recipe::{Flat, differences, flat, replicates};
pub use crate::record::{Metrics, Panel, Run, Won, runs};
pub use crate::report::Report;
pub use crate::stats::Estimate;
pub use crate::table::Table;
