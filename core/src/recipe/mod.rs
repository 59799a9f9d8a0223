//! The YAML of a run: structs, merging, and errors that say where.

mod schema;

pub use schema::*;
