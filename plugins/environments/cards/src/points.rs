//! EZPoints and Points24: build a formula of all cards that equals 12 or 24.

use crate::card::{Card, list};
use crate::formula;
use crate::outcome::Outcome;

/// The rules in which the two games differ.
#[derive(Debug, PartialEq, Eq)]
pub struct Rules {
    /// The value to reach.
    pub target: i32,
    /// Cards of a hand.
    pub cards: usize,
    /// Entries of the formula; one more, and the next step ends the game.
    pub longest: usize,
    /// The actions in the order of gym_cards, the number n at n - 1.
    pub actions: &'static [&'static str],
}

/// Two cards, whose sum or product is 12.
pub const EZPOINTS: Rules = Rules {
    target: 12,
    cards: 2,
    longest: 5,
    actions: &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "+", "*", "="],
};
/// Four cards.
pub const POINTS24: Rules = Rules {
    target: 24,
    cards: 4,
    longest: 20,
    actions: &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "+", "-", "*", "/", "(", ")", "="],
};

/// Numbers that cards can have.
const NUMBERS: usize = 10;
/// Reward of a formula that equals the target.
const REWARD: f64 = 10.0;

impl Rules {
    /// The action that adds a number to the formula.
    pub fn number(&self, number: u8) -> &'static str {
        self.actions[usize::from(number) - 1]
    }

    /// The actions that are no numbers.
    pub fn signs(&self) -> &'static [&'static str] {
        &self.actions[NUMBERS..]
    }
}

/// A hand and its formula.
#[derive(Debug, Clone)]
pub struct Points {
    pub rules: &'static Rules,
    pub cards: Vec<Card>,
    /// The entries so far, all of them actions.
    pub formula: Vec<&'static str>,
}

impl Points {
    /// Starts with an empty formula.
    pub fn new(rules: &'static Rules, cards: Vec<Card>) -> Points {
        Points { rules, cards, formula: Vec::new() }
    }

    /// The numbers of the cards.
    pub fn numbers(&self) -> Vec<u8> {
        self.cards.iter().map(|card| card.number()).collect()
    }

    /// The numbers of the cards that the formula does not have yet, in the order of the cards.
    pub fn unused(&self) -> Vec<&'static str> {
        let mut unused: Vec<_> = self.numbers().into_iter().map(|number| self.rules.number(number)).collect();
        for entry in &self.formula {
            if let Some(used) = unused.iter().position(|number| number == entry) {
                unused.remove(used);
            }
        }
        unused
    }

    /// The unused numbers and all signs.
    pub fn admissible(&self) -> Vec<String> {
        let mut actions: Vec<&str> = Vec::new();
        for number in self.unused() {
            if !actions.contains(&number) {
                actions.push(number);
            }
        }
        actions.iter().chain(self.rules.signs()).map(|action| action.to_string()).collect()
    }

    /// Plays one action. A number that no unused card has changes nothing.
    pub fn step(&mut self, action: &'static str) -> Outcome {
        if self.formula.len() > self.rules.longest {
            return Outcome { truncated: true, ..Outcome::default() };
        }
        if action == "=" {
            let won = self.unused().is_empty() && self.equals_target();
            return Outcome { reward: if won { REWARD } else { 0.0 }, terminated: true, won, ..Outcome::default() };
        }
        if self.rules.signs().contains(&action) || self.unused().contains(&action) {
            self.formula.push(action);
        }
        Outcome::default()
    }

    fn equals_target(&self) -> bool {
        formula::evaluate(&self.joined()).is_some_and(|value| value.equals(self.rules.target))
    }

    /// The formula as the reference implementation writes it into its prompt, beside the image.
    pub fn joined(&self) -> String {
        self.formula.concat()
    }

    /// The text of the image: cards and formula.
    pub fn text(&self) -> String {
        let formula: String = self.formula.iter().flat_map(|entry| [" ", entry]).collect();
        format!("cards: {}\nformula:{formula}", list(&self.cards))
    }
}
