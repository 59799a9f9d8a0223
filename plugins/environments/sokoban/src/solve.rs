//! The solver behind the expert: A* over player and boxes, shortest in moves (moves are what an episode pays for).

use crate::board::{Board, Cell, Direction, State};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Positions that the solver examines before it gives up.
pub const MAX_POSITIONS: usize = 500_000;
/// Pushes to the nearest target from a cell that no box can leave for one.
const DEAD: u32 = u32::MAX;

/// Returns a shortest list of moves that brings every box onto a target; `None` if there is none (or none was found
/// within [`MAX_POSITIONS`]).
pub fn solve(board: &Board, start: &State) -> Option<Vec<Direction>> {
    let pushes = pushes_to_target(board);
    let estimate = |state: &State| {
        state.boxes().try_fold(0u32, |sum, cell| match pushes[cell as usize] {
            DEAD => None,
            needed => Some(sum + needed),
        })
    };
    // The open list is ordered by moves made + estimate; among equals the deeper one goes first, then the older.
    let mut open = BinaryHeap::new();
    let mut reached: HashMap<State, Reached> = HashMap::new();
    open.push((Reverse(estimate(start)?), 0u32, Reverse(0usize), *start));
    reached.insert(*start, Reached { moves: 0, from: None });
    let mut age = 0;
    while let Some((_, moves, _, state)) = open.pop() {
        if moves > reached[&state].moves {
            continue;
        }
        if board.is_solved(&state) {
            return Some(trace(&reached, state));
        }
        for direction in Direction::ALL {
            let Some(next) = board.step(&state, direction) else { continue };
            let Some(rest) = estimate(&next) else { continue };
            let known = reached.get(&next).map_or(u32::MAX, |r| r.moves);
            if moves + 1 < known {
                reached.insert(next, Reached { moves: moves + 1, from: Some((state, direction)) });
                age += 1;
                open.push((Reverse(moves + 1 + rest), moves + 1, Reverse(age), next));
            }
        }
        if reached.len() > MAX_POSITIONS {
            return None;
        }
    }
    None
}

/// The step by which a state was reached.
struct Reached {
    moves: u32,
    from: Option<(State, Direction)>,
}

/// Returns the moves that led to a state.
fn trace(reached: &HashMap<State, Reached>, end: State) -> Vec<Direction> {
    let mut moves = Vec::new();
    let mut state = end;
    while let Some((before, direction)) = reached[&state].from {
        moves.push(direction);
        state = before;
    }
    moves.reverse();
    moves
}

/// Computes for every cell the fewest pushes that bring a box from it to some target if nothing else were on the board.
/// This is never more than the truth, so A* stays exact. [`DEAD`] if no pushes do.
fn pushes_to_target(board: &Board) -> Vec<u32> {
    let mut pushes = vec![DEAD; board.rows() * board.cols()];
    let mut queue: VecDeque<u8> = board.targets().collect();
    for &target in &queue {
        pushes[target as usize] = 0;
    }
    while let Some(cell) = queue.pop_front() {
        for direction in Direction::ALL {
            // Backwards: the box came from `from`, pushed the other way by a player one cell further.
            let from = board.next(cell, direction);
            if board.cell(from) == Cell::Wall || pushes[from as usize] != DEAD {
                continue;
            }
            if board.cell(board.next(from, direction)) != Cell::Wall {
                pushes[from as usize] = pushes[cell as usize] + 1;
                queue.push_back(from);
            }
        }
    }
    pushes
}
