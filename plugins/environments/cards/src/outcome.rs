//! The result of an action, the same for all games.

/// The result of one action.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    pub reward: f64,
    /// The game ended by its rules.
    pub terminated: bool,
    /// The formula is too long to end well.
    pub truncated: bool,
    pub won: bool,
}
