//! Blackjack by the rules of gymnasium's `Blackjack-v1`, without the extra pay for a natural. A game that is not won is
//! worth 0, as in the reference implementation of the GiGPO paper; gymnasium has -1 for a lost one.

use crate::card::{Card, Deck, list};
use crate::outcome::Outcome;

/// The actions in the order of gym_cards.
pub const ACTIONS: [&str; 2] = ["stand", "hit"];
/// The dealer draws below this sum.
const DEALER_STANDS: u8 = 17;
/// The best sum. A hand above it is bust.
const BEST: u8 = 21;

/// The hands of dealer and player.
#[derive(Debug, Clone)]
pub struct Blackjack {
    /// The player sees the first card only.
    pub dealer: Vec<Card>,
    pub player: Vec<Card>,
    deck: Deck,
}

impl Blackjack {
    /// Deals two cards to the dealer and two to the player.
    pub fn new(mut deck: Deck) -> Blackjack {
        let mut two = || vec![deck.draw(), deck.draw()];
        let (dealer, player) = (two(), two());
        Blackjack { dealer, player, deck }
    }

    /// Plays one action.
    pub fn step(&mut self, action: &str) -> Outcome {
        if action == "hit" {
            self.player.push(self.deck.draw());
            return Outcome { terminated: sum(&self.player) > BEST, ..Outcome::default() };
        }
        while sum(&self.dealer) < DEALER_STANDS {
            self.dealer.push(self.deck.draw());
        }
        let (player, dealer) = (sum(&self.player), sum(&self.dealer));
        let won = dealer > BEST || player > dealer;
        Outcome { reward: f64::from(u8::from(won)), terminated: true, won, ..Outcome::default() }
    }

    /// The text of the image: the dealer's first card and the player's hand.
    pub fn text(&self) -> String {
        format!("dealer: {}, one card face down\nplayer: {}", self.dealer[0], list(&self.player))
    }
}

/// An ace counts 11 unless the hand is bust with it.
pub fn has_soft_ace(hand: &[Card]) -> bool {
    hand.iter().any(|card| card.number() == 1) && hard_sum(hand) + 10 <= BEST
}

/// The sum of a hand.
pub fn sum(hand: &[Card]) -> u8 {
    hard_sum(hand) + if has_soft_ace(hand) { 10 } else { 0 }
}

fn hard_sum(hand: &[Card]) -> u8 {
    hand.iter().map(|card| card.number()).sum()
}
