//! ALFWorld's game engine: reads `game.tw-pddl` and plays it, with the texts of the original (alfworld 0.4.2 on
//! TextWorld 1.7.0). In reading order: s-expressions, facts, conditions, joins, PDDL; the grammar, its queries,
//! expressions and texts; names; a game and its play.

pub mod expression;
pub mod facts;
pub mod formula;
pub mod game;
pub mod grammar;
pub mod join;
pub mod names;
pub mod pddl;
pub mod query;
pub mod sexp;
pub mod text;

pub use game::{Game, GameFile, Operator, Play};
