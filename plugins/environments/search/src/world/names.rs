//! Invented names: syllables that no passage and no question uses otherwise.

use std::collections::HashSet;

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::Size;
use super::relation::Kind;

const CONSONANTS: [&str; 14] = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"];
const VOWELS: [&str; 5] = ["a", "e", "i", "o", "u"];
/// Ends of all syllables but the last in a small world. Each pair of consonant and vowel has one end, so that there are 70
/// syllables for a beginning and 70 for an end: a small network learns each as one token.
const MIDDLES: [&str; 3] = ["l", "n", "r"];
/// Ends of names. English stemming leaves them alone, so that two names never share a stem.
const ENDS: [&str; 4] = ["k", "m", "n", "x"];
const GIVEN: [&str; 12] =
    ["Ana", "Boris", "Clara", "David", "Edith", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Laura", "Oscar"];
const COMPANIES: [&str; 6] = ["Works", "Mills", "Bank", "Press", "Line", "Brothers"];
const WORKS: [&str; 8] = ["Silver", "Silent", "Golden", "Distant", "Broken", "Northern", "Hidden", "Burning"];

/// Draws names, each one once.
pub struct Names {
    size: Size,
    syllables: u32,
    taken: HashSet<String>,
}

impl Names {
    /// Names for this number of entities: enough syllables that a fifth of the names
    /// stays free.
    pub fn new(size: Size, entities: usize) -> Names {
        let (mut syllables, choices) = (2, CONSONANTS.len() * VOWELS.len());
        while choices.pow(syllables) < entities + entities / 4 {
            syllables += 1;
        }
        // "Felix" is also made of such syllables.
        let taken = [&GIVEN[..], &COMPANIES, &WORKS].concat().into_iter().map(str::to_owned).collect();
        Names { size, syllables, taken }
    }

    /// A new name for an entity. Names of size `real` have a second word that other names share.
    pub fn draw(&mut self, kind: Kind, dice: &mut ChaCha8Rng) -> String {
        let own = loop {
            let name = self.invent(dice);
            if self.taken.insert(name.clone()) {
                break name;
            }
        };
        match (self.size, kind) {
            (Size::Small, _) | (_, Kind::Town) => own,
            (_, Kind::Person) => format!("{} {own}", pick(&GIVEN, dice)),
            (_, Kind::Company) => format!("{own} {}", pick(&COMPANIES, dice)),
            (_, Kind::Work) => format!("{} {own}", pick(&WORKS, dice)),
        }
    }

    fn invent(&self, dice: &mut ChaCha8Rng) -> String {
        let mut name = String::new();
        for left in (0..self.syllables).rev() {
            let (consonant, vowel) = (dice.random_range(0..CONSONANTS.len()), dice.random_range(0..VOWELS.len()));
            name.extend([CONSONANTS[consonant], VOWELS[vowel]]);
            name += match (self.size, left) {
                (Size::Small, 0) => ENDS[(consonant + vowel) % ENDS.len()],
                (Size::Small, _) => MIDDLES[(consonant + vowel) % MIDDLES.len()],
                (Size::Real, 0) => pick(&ENDS, dice),
                (Size::Real, _) => "",
            };
        }
        name[..1].to_uppercase() + &name[1..]
    }
}

/// One of the words; a list is never empty here.
pub fn pick<'a>(words: &[&'a str], dice: &mut ChaCha8Rng) -> &'a str {
    words.choose(dice).copied().unwrap_or_default()
}

/// A year of the past, for a passage.
pub fn year(dice: &mut ChaCha8Rng) -> u32 {
    dice.random_range(1700..2000)
}
