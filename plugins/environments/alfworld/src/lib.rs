//! ALFWorld's text games, read from their own game files (`game.tw-pddl`) and played without Python: a household robot
//! finds, carries, cleans, heats, cools and places objects. Shridhar et al. 2021, arXiv 2010.03768; the rules of play
//! (answers, reward, step limit) are those of the GiGPO paper's reference implementation. The prompt is our own.
//!
//! Tasks are games in the order of their paths. The seed of a reset has no effect: nothing in a game is random.

#![forbid(unsafe_code)]

pub mod engine;
mod expert;
pub mod games;
pub mod generate;
pub mod task_type;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use engine::{Game, Play as GamePlay};
pub use expert::next_command;
use games::{Games, Generator};
use generate::{Package, Size};
use nestor_plugin::{Environment, Expert, Instance, Observation, Replay, Replayed, Snapshot, Start};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use task_type::TaskType;

/// The keys of `env.config`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
// Needs no downloaded games.
#[schemars(example = serde_json::json!({"generate": {"size": "small", "train": 3000, "eval": 120}, "max_steps": 25, "raw_commands": true}))]
#[schemars(extend("x-published" = published()))]
pub struct Config {
    /// A game file, a folder of games, or the folder that alfworld-download filled (or its json_2.1.1). Without it and
    /// without `generate`: the folder of the variable ALFWORLD_DATA, or ~/.cache/alfworld.
    #[serde(default)]
    pub games: Option<PathBuf>,
    /// Play generated games instead of files.
    #[serde(default)]
    pub generate: Option<Generate>,
    /// The task types to play, by name; all six if omitted.
    #[serde(default)]
    pub task_types: Option<Vec<String>>,
    /// Steps after which an episode is cut. If omitted: 50, or no limit with raw_commands.
    #[serde(default)]
    pub max_steps: Option<u32>,
    /// Take each response as the command itself (`go to shelf 1`) instead of a tagged answer.
    #[serde(default)]
    pub raw_commands: bool,
}

/// The settings of verl-agent's runs (examples/gigpo_trainer/run_alfworld.sh), which `nestor init` writes for a pretrained model.
/// Without ALFWorld's own games they are played on generated ones of the same size.
fn published() -> Value {
    serde_json::json!({
        "config": [{"max_steps": 50}, {"generate": {"size": "real"}, "max_steps": 50}],
        "iterations": 150,
        "rollout": {
            "tasks": 16, "group_size": 8, "max_prompt_tokens": 2048, "max_response_tokens": 512,
            "invalid_action_penalty": 0.1,
        },
        "update": {"mini_batch": 256, "micro_batch_tokens": 19200},
        "eval": {"tasks": "all", "every": 5, "temperature": 0.4, "split": "eval_in_distribution"},
    })
}

/// Selects the games to generate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// Size of the households.
    pub size: Size,
    /// Games of the split `train`.
    #[serde(default = "default_train")]
    pub train: u64,
    /// Games of each other split.
    #[serde(default = "default_eval")]
    pub eval: u64,
    /// Another seed gives other games.
    #[serde(default)]
    pub seed: u64,
    /// The folder of the Python package `alfworld`, which contains domain and grammar. Without it: `.venv/alfworld` in the
    /// working directory, or beside the program or above it.
    #[serde(default)]
    pub package: Option<PathBuf>,
}

/// As many as in the real data.
fn default_train() -> u64 {
    3553
}

fn default_eval() -> u64 {
    140
}

/// Steps of an episode in the reference implementation.
const MAX_STEPS: u32 = 50;
/// Reward of a won game.
const REWARD: f64 = 10.0;
/// In a response without tags, this many characters at the end count as its action.
const TAIL: usize = 30;

/// The shared data: the games, and the rules of play.
pub struct AlfWorld {
    games: Games,
    max_steps: u32,
    raw_commands: bool,
}

fn task_types(names: Option<Vec<String>>) -> Result<Vec<TaskType>> {
    let Some(names) = names else { return Ok(TaskType::ALL.to_vec()) };
    ensure!(!names.is_empty(), "task_types is empty: name at least one, or remove the key");
    let mut types: Vec<TaskType> =
        names.iter().map(|name| TaskType::from_name(name)).collect::<Result<_>>().context("task_types")?;
    types.sort_unstable();
    types.dedup();
    Ok(types)
}

impl Environment for AlfWorld {
    const ID: &'static str = "alfworld";
    const DOC: &'static str = "ALFWorld: household tasks in text, from the original game files";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<AlfWorld> {
        ensure!(config.max_steps != Some(0), "max_steps must be at least 1");
        let task_types = task_types(config.task_types)?;
        let games = match (config.games, config.generate) {
            (Some(_), Some(_)) => anyhow::bail!("games and generate exclude each other: remove one"),
            (Some(path), None) => Games::find(&path, &task_types)?,
            (None, Some(generate)) => {
                ensure!(generate.train > 0 && generate.eval > 0, "generate: train and eval must be at least 1");
                let folder = generate.package.unwrap_or_else(Package::installed);
                let package = Package::read(&folder).context("generate.package")?;
                let counts = [generate.train, generate.eval];
                Games::Generated(Generator { package, size: generate.size, counts, seed: generate.seed, task_types })
            }
            (None, None) => {
                let folder = std::env::var_os("ALFWORLD_DATA").map(PathBuf::from);
                let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".cache/alfworld")));
                let folder = folder.context("set `games`, or the variable ALFWORLD_DATA")?;
                Games::find(&folder, &task_types)
                    .context("neither `games` nor `generate` is given, so the games of ALFWORLD_DATA are used")?
            }
        };
        let unlimited = if config.raw_commands { u32::MAX } else { MAX_STEPS };
        Ok(AlfWorld { games, max_steps: config.max_steps.unwrap_or(unlimited), raw_commands: config.raw_commands })
    }

    fn template(&self) -> String {
        let answer = if self.raw_commands { include_str!("answer_raw.txt") } else { include_str!("answer_tagged.txt") };
        format!("{}{answer}", include_str!("prompt.txt"))
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        self.games.count(split)
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
    play: GamePlay,
    /// Task type and name of the game.
    labels: Map<String, Value>,
    steps: u32,
}

impl Replay for Episode {
    type World = AlfWorld;
    type Action = String;

    fn start(world: &AlfWorld, split: &str, task: u64) -> Result<Episode> {
        let chosen = world.games.choose(split, task)?;
        let game = Game::new(&chosen.file).with_context(|| chosen.place.clone())?;
        let play = game.play().with_context(|| chosen.place.clone())?;
        let mut labels = Map::new();
        if let Some(task_type) = chosen.task_type {
            labels.insert("task_type".into(), task_type.name().into());
        }
        labels.insert("game".into(), chosen.name.clone().into());
        Ok(Episode { game, play, labels, steps: 0 })
    }

    fn play(&mut self, world: &AlfWorld, command: String) -> Result<Observation> {
        let text = self.play.step(&self.game, &command)?;
        self.steps += 1;
        let mut seen = self.observe(text)?;
        seen.action = command;
        seen.reward = if seen.terminated { REWARD } else { 0.0 };
        seen.truncated = !seen.terminated && self.steps >= world.max_steps;
        Ok(seen)
    }
}

impl Episode {
    fn observe(&self, text: String) -> Result<Observation> {
        let won = self.play.won(&self.game)?;
        let mut info = self.labels.clone();
        info.insert("won".into(), won.into());
        Ok(Observation {
            anchor: text.clone().into_bytes(),
            text,
            task: self.game.task().to_owned(),
            admissible: self.play.commands(),
            terminated: won,
            valid: true,
            info,
            ..Observation::default()
        })
    }
}

impl Instance for Play {
    type World = AlfWorld;

    fn reset(&mut self, world: &AlfWorld, start: Start<'_>) -> Result<Observation> {
        let episode = self.episode.start(world, start)?;
        let first = episode.observe(episode.game.intro.clone())?;
        ensure!(!first.terminated, "{}: the game is won before it begins", episode.labels["game"]);
        Ok(first)
    }

    fn step(&mut self, world: &AlfWorld, response: &str) -> Result<Observation> {
        let (action, valid) = if world.raw_commands {
            (nestor_plugin::parse::strip(response).to_owned(), true)
        } else {
            let read = nestor_plugin::parse::think_action(response, TAIL);
            (read.text, read.valid)
        };
        Ok(Observation { valid, ..self.episode.play(world, action)? })
    }
}

impl Expert for Play {
    fn next_action(&mut self, _world: &AlfWorld) -> Result<String> {
        let episode = self.episode.running()?;
        next_command(&episode.game, &episode.play).with_context(|| episode.labels["game"].to_string())
    }

    fn response(&self, world: &AlfWorld, action: &str) -> Result<String> {
        Ok(if world.raw_commands { action.into() } else { format!("<think></think><action>{action}</action>") })
    }
}

impl Snapshot for Play {
    fn save(&self, _world: &AlfWorld) -> Result<Vec<u8>> {
        self.episode.save()
    }

    fn load(&mut self, world: &AlfWorld, state: &[u8]) -> Result<()> {
        self.episode.load(world, state)
    }
}

/// Returns the expert's commands, which win the game.
///
/// # Errors
/// The expert finds no solution, or has not won after as many steps as an episode has.
pub fn walkthrough(game: &Game) -> Result<Vec<String>> {
    let mut play = game.play()?;
    let mut commands = Vec::new();
    while !play.won(game)? {
        ensure!(commands.len() < MAX_STEPS as usize, "the expert has not won after {MAX_STEPS} steps");
        let command = next_command(game, &play)?;
        play.step(game, &command)?;
        commands.push(command);
    }
    Ok(commands)
}

nestor_plugin::export! { environments: [AlfWorld + expert + snapshot] }
