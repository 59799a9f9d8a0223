//! ALFWorld's text games, read from their own game files (`game.tw-pddl`) and played without Python.

pub mod engine;
pub mod generate;
pub mod task_type;
