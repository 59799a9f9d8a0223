//! A game under way, whichever of the four it is.

use nestor_draw::Modality;
use serde_json::{Map, Value, json};

use crate::blackjack::{self, Blackjack};
use crate::card::Card;
use crate::numberline::{self, NumberLine};
use crate::outcome::Outcome;
use crate::points::Points;

/// A game under way.
#[derive(Debug, Clone)]
pub enum Game {
    Points(Points),
    Blackjack(Box<Blackjack>),
    NumberLine(NumberLine),
}

impl Game {
    /// All actions, in the order of gym_cards.
    pub fn actions(&self) -> &'static [&'static str] {
        match self {
            Game::Points(points) => points.rules.actions,
            Game::Blackjack(_) => &blackjack::ACTIONS,
            Game::NumberLine(_) => &numberline::ACTIONS,
        }
    }

    pub fn step(&mut self, action: &'static str) -> Outcome {
        match self {
            Game::Points(points) => points.step(action),
            Game::Blackjack(blackjack) => blackjack.step(action),
            Game::NumberLine(line) => line.step(action),
        }
    }

    pub fn task(&self) -> String {
        match self {
            Game::Points(points) => format!("Make a formula of all cards that equals {}.", points.rules.target),
            Game::Blackjack(_) => "Win against the dealer.".into(),
            Game::NumberLine(_) => "Bring the current number to the target.".into(),
        }
    }

    /// Cards and formula as gym_cards reports them, for the record of the episode. The policy does not see them.
    pub fn info(&self) -> Map<String, Value> {
        let codes = |cards: &[Card]| -> Value { cards.iter().map(|card| card.code()).collect() };
        let number = |entry: &&str| entry.parse::<u8>().map_or_else(|_| json!(entry), |number| json!(number));
        let entries = match self {
            Game::Points(points) => vec![
                ("cards", codes(&points.cards)),
                ("numbers", points.numbers().into()),
                ("formula", points.formula.iter().map(number).collect()),
            ],
            Game::Blackjack(game) => vec![("dealer", codes(&game.dealer)), ("player", codes(&game.player))],
            Game::NumberLine(line) => vec![("target", line.target.into()), ("current", line.current.into())],
        };
        entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The state as text.
    pub fn text(&self) -> String {
        match self {
            Game::Points(points) => points.text(),
            Game::Blackjack(game) => game.text(),
            Game::NumberLine(line) => line.text(),
        }
    }

    /// The text beside a picture alone. The prompts of the reference implementation have the formula, though its image shows
    /// it too.
    pub fn caption(&self) -> String {
        match self {
            Game::Points(points) => points.joined(),
            Game::Blackjack(_) | Game::NumberLine(_) => String::new(),
        }
    }

    /// The admissible actions. A policy that sees a picture alone must read the numbers of the cards from it.
    pub fn admissible(&self, observation: Modality) -> Vec<String> {
        match self {
            Game::Points(points) if observation != Modality::Image => points.admissible(),
            _ => self.actions().iter().map(|action| action.to_string()).collect(),
        }
    }
}
