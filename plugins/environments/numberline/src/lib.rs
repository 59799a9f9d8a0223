//! NumberLine in text: step from a number to a target, one up or down at a time. Rules, rewards and answer form follow
//! gym_cards as the GiGPO paper plays it (there as an image; here the two numbers are text).
//!
//! A task is a pair of target and start. All pairs with target != start are shuffled in an order that depends on `max`
//! alone; the first `held_out` of them are split `eval`, the others split `train`. The seed of a reset has no effect.

#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Environment, Expert, Instance, Observation, Snapshot, Start, parse, running};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of `env.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The line goes from 0 to this number.
    #[serde(default = "default_max")]
    pub max: u32,
    /// Steps after which an episode is cut; twice `max` if omitted.
    #[serde(default)]
    pub max_steps: Option<u32>,
    /// Pairs of target and start kept for split `eval`; a fifth of all if omitted.
    #[serde(default)]
    pub held_out: Option<u32>,
    /// Take each response as the command itself (`+` or `-`) instead of a JSON answer.
    #[serde(default)]
    pub raw_commands: bool,
    /// Call the two actions `down` and `up` instead of `-` and `+`, which language models know better as words.
    #[serde(default)]
    pub words: bool,
}

fn default_max() -> u32 {
    5
}

/// The commands, in the order of gym_cards: to the next smaller number, to the next larger one. Both are admissible in every state.
/// At an end of the line one of them does not move (and is punished like a step away).
type Actions = [&'static str; 2];
const SIGNS: Actions = ["-", "+"];
const WORDS: Actions = ["down", "up"];

/// Start and target of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    target: u32,
    start: u32,
}

/// The shared data: the line and its tasks.
pub struct NumberLine {
    max: u32,
    max_steps: u32,
    raw_commands: bool,
    actions: Actions,
    /// The held-out pairs, then those to train on.
    pairs: Vec<Pair>,
    held_out: usize,
}

impl NumberLine {
    fn split(&self, split: &str) -> Result<&[Pair]> {
        match split {
            "eval" => Ok(&self.pairs[..self.held_out]),
            "train" => Ok(&self.pairs[self.held_out..]),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }
}

/// Lists all pairs of different numbers in 0..=max, target by target, then shuffles them (Fisher and Yates) by ChaCha8
/// seeded with `max`. The shuffle is written out so that the split stays the same whatever the rand crates change.
fn shuffled_pairs(max: u32) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = (0..=max)
        .flat_map(|target| (0..=max).filter(move |&s| s != target).map(move |start| Pair { target, start }))
        .collect();
    let mut dice = ChaCha8Rng::seed_from_u64(max.into());
    for last in (1..pairs.len()).rev() {
        let other = (u64::from(dice.next_u32()) * (last as u64 + 1)) >> 32;
        pairs.swap(last, other as usize);
    }
    pairs
}

impl Environment for NumberLine {
    const ID: &'static str = "numberline";
    const DOC: &'static str = "NumberLine in text: step from a number to a target";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<NumberLine> {
        ensure!((1..=1000).contains(&config.max), "max is {}: it must be between 1 and 1000", config.max);
        let max_steps = config.max_steps.unwrap_or(2 * config.max);
        ensure!(max_steps > 0, "max_steps must be at least 1");
        let pairs = shuffled_pairs(config.max);
        let held_out = config.held_out.map_or(pairs.len() / 5, |n| n as usize);
        ensure!(
            held_out < pairs.len(),
            "held_out is {held_out}, but the numbers 0 to {} make {} pairs of target and start: leave some to train on",
            config.max,
            pairs.len()
        );
        let Config { max, raw_commands, words, .. } = config;
        let actions = if words { WORDS } else { SIGNS };
        Ok(NumberLine { max, max_steps, raw_commands, actions, pairs, held_out })
    }

    fn template(&self) -> String {
        let answer = if self.raw_commands { include_str!("answer_raw.txt") } else { include_str!("answer_json.txt") };
        let [down, up] = self.actions;
        let prompt = include_str!("prompt.txt").replace("MAX", &self.max.to_string());
        format!("{}{answer}", prompt.replace("UP", up).replace("DOWN", down))
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        Ok(self.split(split)?.len() as u64)
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play { game: None })
    }
}

/// One instance: its game, if it was reset.
pub struct Play {
    game: Option<Game>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Game {
    target: u32,
    current: u32,
    /// Steps that count: those whose action was parsed.
    steps: u32,
    over: bool,
}

impl Game {
    fn observe(&self, actions: &Actions) -> Observation {
        let text = format!("target: {}\ncurrent: {}", self.target, self.current);
        let mut info = serde_json::Map::new();
        info.insert("won".into(), (self.target == self.current).into());
        info.insert("target".into(), self.target.into());
        info.insert("current".into(), self.current.into());
        Observation {
            anchor: text.clone().into_bytes(),
            text,
            task: "Bring the current number to the target.".into(),
            admissible: actions.map(str::to_owned).to_vec(),
            valid: true,
            info,
            ..Observation::default()
        }
    }
}

impl Instance for Play {
    type World = NumberLine;

    fn reset(&mut self, world: &NumberLine, start: Start<'_>) -> Result<Observation> {
        let pairs = world.split(start.split)?;
        let pair = usize::try_from(start.task).ok().and_then(|task| pairs.get(task));
        let Some(&Pair { target, start: current }) = pair else {
            bail!("there is no task {}: split {} has {} of them", start.task, start.split, pairs.len());
        };
        Ok(self.game.insert(Game { target, current, steps: 0, over: false }).observe(&world.actions))
    }

    /// The reward is +1 (and the episode ends) on reaching the target, -1 for a step that does not come closer, 0 for
    /// one that does. A response that names no action, or both, changes nothing and does not count towards the step
    /// limit.
    fn step(&mut self, world: &NumberLine, response: &str) -> Result<Observation> {
        let game = running(&mut self.game, |it| it.over)?;
        let action = if world.raw_commands {
            parse::raw_action(&world.actions, response)
        } else {
            parse::json_action(&world.actions, response)
        };
        let Some(action) = action else {
            return Ok(Observation { valid: false, ..game.observe(&world.actions) });
        };
        let distance = game.current.abs_diff(game.target);
        game.current = match action {
            0 => game.current.saturating_sub(1),
            _ => (game.current + 1).min(world.max),
        };
        game.steps += 1;
        let won = game.current == game.target;
        let truncated = !won && game.steps >= world.max_steps;
        game.over = won || truncated;
        let reward = if won {
            1.0
        } else if game.current.abs_diff(game.target) < distance {
            0.0
        } else {
            -1.0
        };
        Ok(Observation {
            action: world.actions[action].into(),
            reward,
            terminated: won,
            truncated,
            ..game.observe(&world.actions)
        })
    }
}

impl Expert for Play {
    fn next_action(&mut self, world: &NumberLine) -> Result<String> {
        let game = running(&mut self.game, |it| it.over)?;
        Ok(world.actions[usize::from(game.current < game.target)].into())
    }

    fn response(&self, world: &NumberLine, action: &str) -> Result<String> {
        Ok(if world.raw_commands { action.into() } else { format!("{{\"action\": \"{action}\"}}") })
    }
}

impl Snapshot for Play {
    fn save(&self, _world: &NumberLine) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.game)?)
    }

    fn load(&mut self, world: &NumberLine, state: &[u8]) -> Result<()> {
        let game: Option<Game> = serde_json::from_slice(state).context("this is no saved state of numberline")?;
        let fits = game.is_none_or(|game| game.current.max(game.target) <= world.max);
        ensure!(fits, "the saved state is of a longer line: this one goes from 0 to {}", world.max);
        self.game = game;
        Ok(())
    }
}

nestor_plugin::export! { environments: [NumberLine + expert + snapshot] }
