//! The games of gym_cards: EZPoints, Points24, Blackjack and NumberLine, in text, as pictures (`picture.rs`) or both. Rules,
//! rewards and answer form are those of the GiGPO paper's reference implementation, which shows images.
//!
//! Tasks are deals: split `train` has the seeds 0 to 65,534, split `eval` 65,536 to 131,071. A given hand is the one task
//! of both. The seed of a reset has no effect: the deal and every later card follow from the task, as in the reference
//! implementation, where the episodes of a group share one seed.

#![forbid(unsafe_code)]

pub mod blackjack;
pub mod card;
mod deal;
pub mod expert;
pub mod formula;
mod game;
pub mod numberline;
mod outcome;
mod picture;
mod play;
pub mod points;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, ensure};
use card::Card;
use deal::{Deal, FIRST_EVAL_SEED};
use game::Game;
use nestor_draw::Modality;
use nestor_plugin::Environment;
use points::Rules;
use schemars::JsonSchema;
use serde::Deserialize;

pub use play::Play;

/// The keys of `env.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = serde_json::json!({"game": "ezpoints"}))]
pub struct Config {
    /// The game.
    pub game: Name,
    /// Deal only hands of Points24 that have a solution with `+`, `-`, `*`, `/` and parentheses. The reference
    /// implementation deals any four cards.
    #[serde(default)]
    pub solvable: bool,
    /// Play these cards instead of dealt ones: suit (H, S, D, C) and rank (A, 2 to 9, T, J, Q, K), such as HT. For
    /// Blackjack, list two cards of the dealer, two of the player, and then any number in the order of the draws.
    #[serde(default)]
    pub cards: Option<Vec<String>>,
    /// Take each response as the action itself (`+`) instead of a JSON answer.
    #[serde(default)]
    pub raw_commands: bool,
    /// The form in which the policy sees the game.
    #[serde(default)]
    pub observation: Modality,
    /// Side of the square picture in pixels; at least 42 for EZPoints, 84 for the other games. Pictures below 224 are grids of
    /// equal cells without words.
    #[serde(default = "default_size")]
    pub size: u32,
    /// Show a grey picture in place of each picture: a control that shows how much a policy reads from pictures.
    #[serde(default)]
    pub blank: bool,
}

fn default_size() -> u32 {
    picture::USUAL
}

/// A game of gym_cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Name {
    /// Make 12 of two cards with `+` and `*`.
    Ezpoints,
    /// Make 24 of four cards with `+`, `-`, `*`, `/` and parentheses.
    Points24,
    /// Come closer to 21 than the dealer.
    Blackjack,
    /// Step from a number to a target.
    Numberline,
}

impl Name {
    /// The rules of a points game.
    fn rules(self) -> Option<&'static Rules> {
        match self {
            Name::Ezpoints => Some(&points::EZPOINTS),
            Name::Points24 => Some(&points::POINTS24),
            Name::Blackjack | Name::Numberline => None,
        }
    }

    /// The sentence of a prompt about the parts of a picture.
    fn picture(self) -> &'static str {
        match self {
            Name::Ezpoints | Name::Points24 => {
                "The picture shows the cards at the top, and below them the formula so far, which is empty at the start."
            }
            Name::Blackjack => {
                "The picture shows the dealer's two cards at the top, one of them face down, and your cards below."
            }
            Name::Numberline => {
                "The picture shows the target in its upper line and the current number in its lower line."
            }
        }
    }
}

/// The shared data: the game and the source of its cards.
pub struct Cards {
    deal: Deal,
    raw_commands: bool,
    observation: Modality,
    /// Side of pictures, in pixels.
    size: u32,
    blank: bool,
}

/// Tasks of split `train`; the reference implementation draws seeds from 0 to 2^16 - 2.
const TRAIN_TASKS: u64 = (1 << 16) - 1;
/// Tasks of split `eval`.
const EVAL_TASKS: u64 = 1 << 16;
/// Cards that Blackjack deals before the first action.
const BLACKJACK_CARDS: usize = 4;

/// The place of the current state in the prompt, and the same with the picture.
const TEXT: &str = "\n{{ observation }}\n";
const TEXT_AND_PICTURE: &str = "\n{{ observation }}\n\nThe same as a picture:\n{{ image }}\n";

/// Reads the given cards and checks their number.
fn given(game: Name, codes: &[String]) -> Result<Vec<Card>> {
    let cards: Vec<Card> = codes.iter().map(|code| code.parse()).collect::<Result<_>>().context("cards")?;
    let count = cards.len();
    match game.rules() {
        Some(rules) => ensure!(
            count == rules.cards,
            "cards: {count} given, but a hand of this game has {} cards: write that many",
            rules.cards
        ),
        None => ensure!(
            count >= BLACKJACK_CARDS,
            "cards: {count} given, but blackjack deals {BLACKJACK_CARDS} at the start: write at least that many"
        ),
    }
    Ok(cards)
}

impl Environment for Cards {
    const ID: &'static str = "cards";
    const DOC: &'static str =
        "The games of gym_cards, seen in text or as pictures: EZPoints, Points24, Blackjack and NumberLine";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<Cards> {
        ensure!(
            !config.solvable || config.game == Name::Points24,
            "solvable belongs to the game points24: remove it, or choose that game"
        );
        ensure!(
            config.game != Name::Numberline || config.cards.is_none(),
            "cards: the game numberline has none: remove the key, or choose another game"
        );
        ensure!(!config.solvable || config.cards.is_none(), "solvable and cards exclude each other: remove one");
        let given = config.cards.as_ref().map(|codes| given(config.game, codes)).transpose()?;
        let Config { game, solvable, raw_commands, observation, size, blank, .. } = config;
        picture::check(game, size)?;
        Ok(Cards { deal: Deal { game, solvable, given }, raw_commands, observation, size, blank })
    }

    fn template(&self) -> String {
        let game = self.deal.game;
        let rules = match game.rules() {
            Some(rules) => include_str!("prompt_points.txt")
                .replace("TARGET", &rules.target.to_string())
                .replace("LONGEST", &rules.longest.to_string()),
            None if game == Name::Numberline => {
                include_str!("prompt_numberline.txt").replace("MAX", &numberline::MAX.to_string())
            }
            None => include_str!("prompt_blackjack.txt").to_owned(),
        };
        let step = match self.observation {
            Modality::Text => include_str!("prompt_step.txt").to_owned(),
            Modality::Image => include_str!("prompt_step_image.txt").replace("PICTURE", game.picture()),
            Modality::Both => include_str!("prompt_step.txt").replacen(TEXT, TEXT_AND_PICTURE, 1),
        };
        let seen = if game == Name::Numberline { "what the numbers are" } else { "what the cards are" };
        let answer = match self.raw_commands {
            true => include_str!("answer_raw.txt").to_owned(),
            false => include_str!("answer_json.txt").replace("what the cards are", seen),
        };
        format!("{rules}{step}{answer}")
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        match split {
            "train" | "eval" if self.deal.given.is_some() => Ok(1),
            "train" => Ok(TRAIN_TASKS),
            "eval" => Ok(EVAL_TASKS),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::default())
    }
}

impl Cards {
    /// Deals a task.
    fn game(&self, split: &str, task: u64) -> Result<Game> {
        let tasks = self.tasks(split)?;
        ensure!(task < tasks, "there is no task {task}: split {split} has the tasks 0 to {}", tasks - 1);
        Ok(self.deal.game(if split == "eval" { FIRST_EVAL_SEED + task } else { task }))
    }
}

nestor_plugin::export! { environments: [Cards + expert + snapshot] }
