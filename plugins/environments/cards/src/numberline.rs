//! NumberLine of gym_cards: step from a number to a target on the line from 0 to 5.

use crate::card::Deck;
use crate::outcome::Outcome;

/// The actions in the order of gym_cards.
pub const ACTIONS: [&str; 2] = ["-", "+"];
/// The line goes from 0 to this number.
pub const MAX: u8 = 5;
/// Actions after which the game is cut.
const MAX_STEPS: u8 = 10;

/// The two numbers.
#[derive(Debug, Clone)]
pub struct NumberLine {
    pub target: u8,
    pub current: u8,
    steps: u8,
}

impl NumberLine {
    /// Draws two different numbers. Of two equal ones gym_cards moves the target by one, and from 4 and 5 to 0 and 1.
    pub fn new(deck: &mut Deck) -> NumberLine {
        let mut number = || deck.below(usize::from(MAX) + 1) as u8;
        let (current, target) = (number(), number());
        let target = if target == current { (target + 1) % MAX } else { target };
        NumberLine { target, current, steps: 0 }
    }

    /// Plays one action: 1 on reaching the target, -1 for an action that does not come closer, 0 for one that does.
    pub fn step(&mut self, action: &str) -> Outcome {
        let distance = self.current.abs_diff(self.target);
        self.current = if action == "-" { self.current.saturating_sub(1) } else { (self.current + 1).min(MAX) };
        self.steps += 1;
        let won = self.current == self.target;
        let reward = match self.current.abs_diff(self.target) {
            0 => 1.0,
            closer if closer < distance => 0.0,
            _ => -1.0,
        };
        Outcome { reward, terminated: won, truncated: !won && self.steps >= MAX_STEPS, won }
    }

    /// The text of the image: the two numbers.
    pub fn text(&self) -> String {
        format!("target: {}\ncurrent: {}", self.target, self.current)
    }
}
