//! Deals the cards of a task from its seed.

use crate::Name;
use crate::blackjack::Blackjack;
use crate::card::{Card, Deck};
use crate::expert::is_solvable;
use crate::game::Game;
use crate::numberline::NumberLine;
use crate::points::{POINTS24, Points};

/// The first seed of split `eval`, as in the reference implementation. Training has smaller ones.
pub const FIRST_EVAL_SEED: u64 = 1 << 16;
/// One in this many hands of Points24 is held out of training.
const HELD_OUT: u32 = 5;

/// A game and the source of its cards.
#[derive(Debug)]
pub struct Deal {
    pub game: Name,
    /// Deal only hands of Points24 that can be won.
    pub solvable: bool,
    /// Play these cards instead.
    pub given: Option<Vec<Card>>,
}

impl Deal {
    /// Starts the game of a seed.
    pub fn game(&self, seed: u64) -> Game {
        let given = self.given.as_deref().unwrap_or_default();
        let mut deck = Deck::new(seed, given);
        match self.game.rules() {
            None if self.game == Name::Numberline => Game::NumberLine(NumberLine::new(&mut deck)),
            None => Game::Blackjack(Box::new(Blackjack::new(deck))),
            Some(rules) if self.given.is_some() => Game::Points(Points::new(rules, given.to_vec())),
            Some(rules) if *rules == POINTS24 => Game::Points(Points::new(rules, self.four(&mut deck, seed))),
            Some(rules) => Game::Points(Points::new(rules, deck.deal_twelve())),
        }
    }

    /// Deals hands until one belongs to the split of the seed and, if wanted, has a solution.
    fn four(&self, deck: &mut Deck, seed: u64) -> Vec<Card> {
        loop {
            let cards = deck.deal_four();
            let mut numbers: Vec<u8> = cards.iter().map(|card| card.number()).collect();
            numbers.sort_unstable();
            let fits = is_held_out(&numbers) == (seed >= FIRST_EVAL_SEED);
            if fits && (!self.solvable || is_solvable(&POINTS24, &numbers)) {
                return cards;
            }
        }
    }
}

/// Decides by its sorted numbers alone if a hand belongs to split `eval`.
fn is_held_out(numbers: &[u8]) -> bool {
    let key = numbers.iter().fold(0, |key, number| key * 16 + u64::from(*number));
    Deck::new(key, &[]).below(HELD_OUT as usize) == 0
}
