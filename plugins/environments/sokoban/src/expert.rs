//! The expert: follows a shortest solution, and finds a new one when the game has left it.

use crate::board::{Board, Direction, State};
use crate::solve::solve;

/// Advice for one episode; made anew at every reset.
#[derive(Debug, Clone, Default)]
pub struct Expert {
    /// The state the plan starts in.
    at: Option<State>,
    /// The moves still to make, last one first.
    plan: Vec<Direction>,
    /// A state without solution was met; the states after it have none either.
    lost: bool,
}

impl Expert {
    /// Returns the next move of a shortest solution. If there is none (a box is stuck, or the solver gave up) no move
    /// helps. Then it returns the first of up, down, left, right that moves the player, so that an episode can still be
    /// played out.
    pub fn advise(&mut self, board: &Board, state: &State) -> Direction {
        if !self.lost && self.at != Some(*state) {
            match solve(board, state) {
                Some(mut moves) => {
                    moves.reverse();
                    (self.at, self.plan) = (Some(*state), moves);
                }
                None => self.lost = true,
            }
        }
        let planned = if self.lost { None } else { self.plan.last().copied() };
        planned
            .or_else(|| Direction::ALL.into_iter().find(|&d| board.step(state, d).is_some()))
            .unwrap_or(Direction::Up)
    }

    /// Records that a move led to `state`, so that the plan is kept if the move followed it.
    pub fn moved(&mut self, before: &State, direction: Direction, after: &State) {
        if self.at == Some(*before) && self.plan.last() == Some(&direction) {
            self.plan.pop();
            self.at = Some(*after);
        }
    }
}
