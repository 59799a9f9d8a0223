//! One episode on a board: rewards and ends.

use crate::board::{Board, Direction, State};

/// A board being played.
#[derive(Debug, Clone)]
pub struct Game {
    pub board: Board,
    /// Position of player and boxes.
    pub state: State,
    steps: u32,
    max_steps: u32,
}

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// -0.1 for every step; +1 when more boxes than before are on targets, -1 when fewer; +10 when all are.
    pub reward: f64,
    /// The player moved.
    pub effective: bool,
    /// Every box is on a target.
    pub won: bool,
    /// The step limit was reached before that.
    pub truncated: bool,
}

impl Game {
    /// Starts a game that is cut after `max_steps` moves.
    pub fn new(board: Board, start: State, max_steps: u32) -> Game {
        Game { board, state: start, steps: 0, max_steps }
    }

    /// Moves. Without a direction the player stays, which costs the same and does not count towards the step limit.
    pub fn step(&mut self, direction: Option<Direction>) -> Outcome {
        let Some(direction) = direction else {
            return Outcome { reward: -0.1, effective: false, won: false, truncated: false };
        };
        self.steps += 1;
        let before = self.board.on_target(&self.state);
        let moved = self.board.step(&self.state, direction);
        if let Some(state) = moved {
            self.state = state;
        }
        let won = self.board.is_solved(&self.state);
        let mut reward = -0.1;
        match self.board.on_target(&self.state).cmp(&before) {
            std::cmp::Ordering::Greater => reward += 1.0,
            std::cmp::Ordering::Less => reward -= 1.0,
            std::cmp::Ordering::Equal => {}
        }
        if won {
            reward += 10.0;
        }
        Outcome { reward, effective: moved.is_some(), won, truncated: !won && self.steps >= self.max_steps }
    }
}
