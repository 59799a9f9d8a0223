//! Boards from a seed, by the method of gym-sokoban (Schrader 2018, after Racanière et al. 2017, "Imagination-Augmented
//! Agents for Deep Reinforcement Learning") in the variant that the GiGPO paper plays:
//!
//! 1. A random walk digs the floor: 1.7 x (rows + columns) steps, each turning with probability 0.35 and stamping one
//!    of five small shapes. The border stays wall.
//! 2. Player and boxes are put on random floor cells; the boxes' cells become the targets.
//! 3. The game is played backwards, depth first up to `search_depth`: the player walks and drags along any box behind
//!    it. The best state found is the start. A state scores (number of changes of the dragged box) x (sum of the boxes'
//!    distances from their targets), and nothing while a target is covered.
//! 4. A board whose best score is 0 is rejected.
//! 5. The player takes up to three random steps, so that it does not always start beside a box.
//!
//! Small boards recur under different seeds (65,535 seeds make some 22,000 different boards of the default shape), so
//! disjoint seeds alone would not separate evaluation from training. Therefore a hash of the board itself, without the
//! player, assigns it to one split, and a seed continues until a board of the wanted split comes up.
//!
//! Every move played backwards is a legal push forwards, so every board can be solved. The random numbers are our own,
//! so a seed gives another board than it gives in Python.

use crate::board::{Board, Cell, Direction, MAX_BOXES, State};
use anyhow::{Result, bail};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::HashSet;

/// The shape of the boards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of rows, border included.
    pub rows: usize,
    /// Number of columns, border included.
    pub cols: usize,
    pub boxes: usize,
    /// Depth to which the game is played backwards.
    pub search_depth: usize,
}

/// The split of the boards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Three quarters of all boards.
    Train,
    /// The others.
    Eval,
}

/// Boards rejected before a shape counts as impossible.
const TRIES: usize = 2000;
/// States explored per board at most.
const MAX_EXPLORED: usize = 300_000;
/// Chance that the digging walk turns before a step.
const TURN: f64 = 0.35;

/// The shapes the walk stamps, as (row, column) offsets from its position.
const STAMPS: [&[(isize, isize)]; 5] = [
    &[(0, -1), (0, 0), (0, 1)],
    &[(-1, 0), (0, 0), (1, 0)],
    &[(0, -1), (0, 0), (1, 0)],
    &[(0, -1), (0, 0), (1, -1), (1, 0)],
    &[(0, 0), (0, 1), (1, 0)],
];

/// Returns the board and start of a seed: always the same.
pub fn generate(shape: Shape, split: Split, seed: u64) -> Result<(Board, State)> {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    for _ in 0..TRIES {
        let cells = dig(shape, &mut dice);
        let Some((board, player, targets)) = furnish(shape, cells, &mut dice)? else { continue };
        let mut reverse =
            Reverse { board: &board, targets: &targets, explored: HashSet::new(), best: None, best_score: 0 };
        let mut boxes = [0; MAX_BOXES];
        boxes[..targets.len()].copy_from_slice(&targets);
        reverse.search(Dragged { player, boxes, last: None, swaps: 0 }, shape.search_depth);
        let Some(best) = reverse.best else { continue };
        let start = best.state(shape.boxes);
        if deal(&board, &start) == split {
            let distance = reverse.displacement(&best);
            let start = wander(&board, start, distance, &mut dice);
            return Ok((board, start));
        }
    }
    let Shape { rows, cols, boxes, .. } = shape;
    bail!(
        "no board of {rows}x{cols} with {boxes} boxes came up in {TRIES} tries: \
         take fewer boxes, a larger dim or a larger search_depth"
    )
}

/// Returns the split of a board, by FNV-1a over its cells and boxes.
fn deal(board: &Board, start: &State) -> Split {
    let cells = (0..(board.rows() * board.cols()) as u8).map(|c| board.cell(c) as u8);
    let hash = cells
        .chain(start.boxes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // The upper bits, which depend on every byte.
    if hash >> 62 == 0 { Split::Eval } else { Split::Train }
}

/// The random walk that digs the floor.
fn dig(shape: Shape, dice: &mut Dice) -> Vec<Cell> {
    let Shape { rows, cols, .. } = shape;
    let mut cells = vec![Cell::Wall; rows * cols];
    let mut direction = dice.pick(&Direction::ALL);
    let (mut row, mut col) = (1 + dice.below(rows - 1) as isize, 1 + dice.below(cols - 1) as isize);
    for _ in 0..(1.7 * (rows + cols) as f64) as usize {
        if dice.chance(TURN) {
            direction = dice.pick(&Direction::ALL);
        }
        match direction {
            Direction::Up => row -= 1,
            Direction::Down => row += 1,
            Direction::Left => col -= 1,
            Direction::Right => col += 1,
        }
        row = row.clamp(1, rows as isize - 2);
        col = col.clamp(1, cols as isize - 2);
        for (down, right) in dice.pick(&STAMPS) {
            let (r, c) = ((row + down) as usize, (col + right) as usize);
            if r > 0 && c > 0 && r + 1 < rows && c + 1 < cols {
                cells[r * cols + c] = Cell::Floor;
            }
        }
    }
    cells
}

/// Puts the player and the targets on random floor cells; `None` if there is not enough floor.
fn furnish(shape: Shape, mut cells: Vec<Cell>, dice: &mut Dice) -> Result<Option<(Board, u8, Vec<u8>)>> {
    let mut floor: Vec<u8> = (0..cells.len() as u8).filter(|&c| cells[c as usize] == Cell::Floor).collect();
    if floor.len() <= shape.boxes + 1 {
        return Ok(None);
    }
    let player = floor.remove(dice.below(floor.len()));
    let targets: Vec<u8> = (0..shape.boxes).map(|_| floor.remove(dice.below(floor.len()))).collect();
    for &target in &targets {
        cells[target as usize] = Cell::Target;
    }
    Ok(Some((Board::new(shape.rows, shape.cols, cells)?, player, targets)))
}

/// A position of the game played backwards, with the identity of each box.
#[derive(Clone, Copy)]
struct Dragged {
    player: u8,
    /// Cell of each target's box.
    boxes: [u8; MAX_BOXES],
    /// The box dragged last.
    last: Option<usize>,
    /// Number of changes of the dragged box.
    swaps: usize,
}

impl Dragged {
    fn state(&self, boxes: usize) -> State {
        State::new(self.player, &self.boxes[..boxes])
    }
}

/// The depth-first search for the best start.
struct Reverse<'a> {
    board: &'a Board,
    targets: &'a [u8],
    explored: HashSet<State>,
    best: Option<Dragged>,
    best_score: usize,
}

impl Reverse<'_> {
    fn search(&mut self, at: Dragged, depth: usize) {
        let state = at.state(self.targets.len());
        if depth <= 1 || self.explored.len() >= MAX_EXPLORED || !self.explored.insert(state) {
            return;
        }
        let score = if self.covers_a_target(&state) { 0 } else { at.swaps * self.displacement(&at) };
        if score > self.best_score {
            (self.best, self.best_score) = (Some(at), score);
        }
        for direction in Direction::ALL {
            if let Some(next) = self.drag(at, &state, direction) {
                self.search(next, depth - 1);
            }
        }
    }

    fn covers_a_target(&self, state: &State) -> bool {
        self.targets.iter().any(|&t| t == state.player || state.has_box(t))
    }

    /// Steps, and drags along a box that is behind the player.
    fn drag(&self, at: Dragged, state: &State, direction: Direction) -> Option<Dragged> {
        let to = self.board.next(at.player, direction);
        if !self.board.is_free(state, to) {
            return None;
        }
        let mut next = Dragged { player: to, ..at };
        let behind = self.board.next(at.player, direction.opposite());
        if let Some(dragged) = at.boxes[..self.targets.len()].iter().position(|&b| b == behind) {
            next.boxes[dragged] = at.player;
            next.swaps += usize::from(at.last != Some(dragged));
            next.last = Some(dragged);
        }
        Some(next)
    }

    /// Returns the sum of the boxes' Manhattan distances from their own targets.
    fn displacement(&self, at: &Dragged) -> usize {
        let cols = self.board.cols();
        let distance = |a: u8, b: u8| {
            let (a, b) = (a as usize, b as usize);
            (a / cols).abs_diff(b / cols) + (a % cols).abs_diff(b % cols)
        };
        self.targets.iter().zip(at.boxes).map(|(&target, at)| distance(target, at)).sum()
    }
}

/// Takes up to three random steps of the player to cells it has not been on, touching no box.
fn wander(board: &Board, start: State, distance: usize, dice: &mut Dice) -> State {
    // A box one step from its target would make the easiest boards: there the player moves away more often.
    if !dice.chance(if distance == 1 { 0.8 } else { 0.5 }) {
        return start;
    }
    let mut state = start;
    let mut visited = vec![state.player];
    for _ in 0..3 {
        let ways: Vec<u8> = Direction::ALL
            .into_iter()
            .map(|d| board.next(state.player, d))
            .filter(|&to| board.is_free(&state, to) && !visited.contains(&to))
            .collect();
        if ways.is_empty() {
            break;
        }
        state.player = dice.pick(&ways);
        visited.push(state.player);
        if !dice.chance(0.5) {
            break;
        }
    }
    state
}

/// Random choices, written out so that a seed keeps its board whatever the rand crates change.
struct Dice(ChaCha8Rng);

impl Dice {
    /// Returns a number below `n`; `n` is tiny, so the bias of one multiplication does not matter.
    fn below(&mut self, n: usize) -> usize {
        ((self.0.next_u32() as u64 * n as u64) >> 32) as usize
    }

    fn chance(&mut self, probability: f64) -> bool {
        (self.0.next_u32() as f64) < probability * 4_294_967_296.0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
