//! Sokoban: push every box onto a target. Rules, rewards and answer form follow gym-sokoban 0.0.6 and the GiGPO paper's
//! use of it; boards come from a seed (`generate.rs`) or from the configuration. The policy sees a grid in text, a picture
//! (`picture.rs`) or both.
//!
//! Tasks are board seeds: split `train` has the seeds 0 to 65,534, split `eval` 65,536 to 131,071, and no board is in
//! both. A given `board` is the one task of both. The seed of a reset has no effect: nothing is random but the board.

#![forbid(unsafe_code)]

mod board;
mod expert;
mod game;
mod generate;
mod parse;
mod picture;
mod solve;
#[cfg(test)]
mod tests;

use anyhow::{Result, ensure};
use board::{Board, Direction, GivenBoard, MAX_BOXES, State};
use expert::Expert;
use game::Game;
use generate::{Shape, Split, generate};
use nestor_draw::Modality;
use nestor_plugin::{Environment, Instance, Observation, Replay, Replayed, Snapshot, Start};
use picture::{LEAST_TILE, Tiles};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// The keys of `env.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Rows and columns of generated boards, border included; [6, 6] if omitted.
    #[serde(default)]
    pub dim: Option<[usize; 2]>,
    /// Boxes on generated boards; 1 if omitted.
    #[serde(default)]
    pub boxes: Option<usize>,
    /// Depth to which generated boards are played backwards: deeper means longer solutions.
    #[serde(default = "default_search_depth")]
    pub search_depth: usize,
    /// Moves after which an episode is cut.
    #[serde(default = "default_max_steps")]
    pub max_steps: u32,
    /// Take each response as the command itself (`up`) instead of a tagged answer.
    #[serde(default)]
    pub raw_commands: bool,
    /// The form in which the policy sees the board.
    #[serde(default)]
    pub observation: Modality,
    /// Side of a cell of the picture in pixels, 16 or more.
    #[serde(default = "default_tile")]
    pub tile: u32,
    /// Show a grey picture in place of each picture: a control that shows how much a policy reads from pictures.
    #[serde(default)]
    pub blank: bool,
    /// Play this board instead of generated ones.
    #[serde(default)]
    pub board: Option<GivenBoard>,
}

fn default_search_depth() -> usize {
    30
}

fn default_max_steps() -> u32 {
    15
}

fn default_tile() -> u32 {
    LEAST_TILE
}

/// The shared data: the source of boards, the rules of play, and the tiles of pictures.
pub struct Sokoban {
    source: Source,
    observation: Modality,
    tiles: Tiles,
    blank: bool,
    max_steps: u32,
    raw_commands: bool,
}

enum Source {
    Given(Board, State),
    Generated(Shape),
}

impl Source {
    /// Rows and columns of its boards.
    fn dim(&self) -> [usize; 2] {
        match self {
            Source::Given(board, _) => [board.rows(), board.cols()],
            Source::Generated(shape) => [shape.rows, shape.cols],
        }
    }
}

/// Seeds of split `train`; the reference implementation draws them from 0 to 2^16 - 2 …
const TRAIN_TASKS: u64 = (1 << 16) - 1;
/// … and those of its validation from 2^16 on.
const FIRST_EVAL_SEED: u64 = 1 << 16;
const EVAL_TASKS: u64 = 1 << 16;

impl Sokoban {
    fn start(&self, split: &str, task: u64) -> Result<(Board, State)> {
        let tasks = self.tasks(split)?;
        ensure!(task < tasks, "task {task}: split {split} has the tasks 0 to {}", tasks - 1);
        match &self.source {
            Source::Given(board, start) => Ok((board.clone(), *start)),
            Source::Generated(shape) if split == "eval" => generate(*shape, Split::Eval, FIRST_EVAL_SEED + task),
            Source::Generated(shape) => generate(*shape, Split::Train, task),
        }
    }

    /// Makes the observation of a game.
    fn observe(&self, game: &Game) -> Result<Observation> {
        let picture = || self.tiles.draw(&game.board, &game.state);
        let shown = self.observation.show(game.board.render(&game.state), String::new(), picture)?;
        let shown = if self.blank { shown.blanked()? } else { shown };
        let mut info = serde_json::Map::new();
        info.insert("won".into(), Value::Bool(false));
        Ok(Observation {
            text: shown.text,
            images: shown.images,
            anchor: shown.anchor,
            task: "Push every box onto a target.".into(),
            admissible: Direction::ALL.iter().map(|d| d.name().to_owned()).collect(),
            valid: true,
            info,
            ..Observation::default()
        })
    }
}

/// The boards to play, after the config's checks.
fn source(config: &Config) -> Result<Source> {
    match &config.board {
        Some(given) => {
            let (board, start) = given.read()?;
            let (dim, boxes) = ([board.rows(), board.cols()], start.boxes().count());
            ensure!(
                config.dim.is_none_or(|d| d == dim) && config.boxes.is_none_or(|b| b == boxes),
                "the given board is {}x{} with {boxes} boxes, dim or boxes differ: remove them",
                dim[0],
                dim[1]
            );
            Ok(Source::Given(board, start))
        }
        None => {
            let [rows, cols] = config.dim.unwrap_or([6, 6]);
            let boxes = config.boxes.unwrap_or(1);
            ensure!(
                (4..=15).contains(&rows) && (4..=15).contains(&cols),
                "dim: rows and columns must be between 4 and 15"
            );
            ensure!((1..=MAX_BOXES).contains(&boxes), "boxes is {boxes}: it must be between 1 and {MAX_BOXES}");
            let shape = Shape { rows, cols, boxes, search_depth: config.search_depth };
            // Some shapes have no board, or none for one of the splits: fail now rather than at the first reset.
            generate(shape, Split::Train, 0)?;
            generate(shape, Split::Eval, FIRST_EVAL_SEED)?;
            Ok(Source::Generated(shape))
        }
    }
}

/// The place of the current grid in the prompt, and the same with the picture.
const GRID: &str = "\n{{ observation }}\n";
const GRID_AND_PICTURE: &str = "\n{{ observation }}\n\nThe same as a picture:\n{{ image }}\n";

impl Environment for Sokoban {
    const ID: &'static str = "sokoban";
    const DOC: &'static str = "Sokoban: push every box onto a target, seen in text or as a picture";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<Sokoban> {
        ensure!(config.max_steps > 0, "max_steps must be at least 1");
        ensure!(
            (3..=1000).contains(&config.search_depth),
            "search_depth is {}: it must be between 3 and 1000",
            config.search_depth
        );
        let source = source(&config)?;
        let tiles = Tiles::new(config.tile, source.dim())?;
        let Config { observation, blank, max_steps, raw_commands, .. } = config;
        Ok(Sokoban { source, observation, tiles, blank, max_steps, raw_commands })
    }

    fn template(&self) -> String {
        let answer = if self.raw_commands { include_str!("answer_raw.txt") } else { include_str!("answer_tagged.txt") };
        let state = match self.observation {
            Modality::Text => include_str!("prompt.txt").to_owned(),
            Modality::Image => include_str!("prompt_image.txt").to_owned(),
            Modality::Both => include_str!("prompt.txt").replacen(GRID, GRID_AND_PICTURE, 1),
        };
        format!("{state}{answer}")
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        match (split, &self.source) {
            ("train" | "eval", Source::Given(..)) => Ok(1),
            ("train", Source::Generated(_)) => Ok(TRAIN_TASKS),
            ("eval", Source::Generated(_)) => Ok(EVAL_TASKS),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::default())
    }
}

/// One instance.
#[derive(Default)]
pub struct Play {
    episode: Replayed<Episode>,
}

struct Episode {
    game: Game,
    expert: Expert,
}

impl Replay for Episode {
    type World = Sokoban;
    /// `None` if no direction was read.
    type Action = Option<Direction>;

    fn start(world: &Sokoban, split: &str, task: u64) -> Result<Episode> {
        let (board, state) = world.start(split, task)?;
        Ok(Episode { game: Game::new(board, state, world.max_steps), expert: Expert::default() })
    }

    fn play(&mut self, world: &Sokoban, direction: Option<Direction>) -> Result<Observation> {
        let before = self.game.state;
        let outcome = self.game.step(direction);
        if let Some(direction) = direction {
            self.expert.moved(&before, direction, &self.game.state);
        }
        let mut seen = world.observe(&self.game)?;
        seen.reward = outcome.reward;
        seen.terminated = outcome.won;
        seen.truncated = outcome.truncated;
        seen.info.insert("won".into(), Value::Bool(outcome.won));
        seen.info.insert("effective".into(), Value::Bool(outcome.effective));
        Ok(seen)
    }
}

impl Instance for Play {
    type World = Sokoban;

    fn reset(&mut self, world: &Sokoban, start: Start<'_>) -> Result<Observation> {
        world.observe(&self.episode.start(world, start)?.game)
    }

    fn step(&mut self, world: &Sokoban, response: &str) -> Result<Observation> {
        let reading = if world.raw_commands { parse::raw(response) } else { parse::tagged(response) };
        let seen = self.episode.play(world, reading.direction)?;
        Ok(Observation { action: reading.action.into(), valid: reading.valid, ..seen })
    }
}

impl nestor_plugin::Expert for Play {
    fn next_action(&mut self, _world: &Sokoban) -> Result<String> {
        let Episode { game, expert } = self.episode.running()?;
        Ok(expert.advise(&game.board, &game.state).name().into())
    }

    fn response(&self, world: &Sokoban, action: &str) -> Result<String> {
        Ok(if world.raw_commands { action.into() } else { format!("<think></think><action>{action}</action>") })
    }
}

impl Snapshot for Play {
    fn save(&self, _world: &Sokoban) -> Result<Vec<u8>> {
        self.episode.save()
    }

    fn load(&mut self, world: &Sokoban, state: &[u8]) -> Result<()> {
        self.episode.load(world, state)
    }
}

nestor_plugin::export! { environments: [Sokoban + expert + snapshot] }
