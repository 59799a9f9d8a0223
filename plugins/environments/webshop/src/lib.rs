//! WebShop: buy the product that an instruction describes, by searching and clicking in a catalogue of products. Yao et al.
//! 2022, arXiv 2207.01206. The engine behaves as the original one (pages, search, score); the rules of play (answers,
//! reward, step limit, splits) are those of the GiGPO paper's reference implementation.
//!
//! Tasks are goals: the first ones are split `eval`, the others `train`. The seed of a reset has no effect.

#![forbid(unsafe_code)]

pub mod bench;
pub mod catalogue;
mod config;
pub mod draw;
mod expert;
pub mod files;
#[cfg(test)]
mod fixtures;
pub mod generate;
pub mod goal;
pub mod goals;
pub mod pages;
mod play;
pub mod product;
pub mod reward;
pub mod session;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use catalogue::load::Files;
use catalogue::{Catalogue, index};
pub use config::Config;
use goal::Goal;
use goals::{Goals, held_out};
use nestor_plugin::Environment;
pub use play::Play;

/// Steps of an episode in the reference implementation.
const MAX_STEPS: u32 = 15;
/// Larger files need an index, in bytes.
const IN_MEMORY: u64 = 256 << 20;

/// The shared data: catalogue, goals, rules of play.
pub struct WebShop {
    /// The products.
    pub catalogue: Catalogue,
    goals: Goals,
    goal: Option<u64>,
    held_out: u64,
    max_steps: u32,
    raw_commands: bool,
}

impl WebShop {
    /// The goal of a task.
    fn choose(&self, split: &str, task: u64) -> Result<(u64, Goal)> {
        let tasks = self.tasks(split)?;
        ensure!(task < tasks, "there is no task {task} in split {split}, which has {tasks}");
        let index = match (self.goal, split) {
            (Some(goal), _) => goal,
            (None, "eval") => task,
            (None, _) => self.held_out + task,
        };
        Ok((index, self.goals.get(&self.catalogue, index)?))
    }

    /// Makes the world of a catalogue and a list of goals.
    fn with(catalogue: Catalogue, goals: Goals, config: &Config) -> Result<WebShop> {
        ensure!(config.max_steps != Some(0), "max_steps must be at least 1");
        let count = goals.len(&catalogue);
        ensure!(count > 0, "there are no goals: no product has an instruction with attributes");
        if let Some(goal) = config.goal {
            ensure!(goal < count, "goal {goal}: there are {count} goals, counted from 0");
        }
        let held_out = config.held_out.unwrap_or_else(|| held_out(count));
        ensure!(held_out < count, "held_out is {held_out}, but there are {count} goals: leave some to train on");
        let &Config { goal, raw_commands, .. } = config;
        let max_steps = config.max_steps.unwrap_or(if raw_commands { u32::MAX } else { MAX_STEPS });
        Ok(WebShop { catalogue, goals, goal, held_out, max_steps, raw_commands })
    }
}

/// Opens the catalogue in a folder: by its index, or in memory.
pub fn open_catalogue(data: &Path, full: bool, index: Option<&Path>) -> Result<Catalogue> {
    let files = Files::find(data, full)?;
    let beside = index::beside(data, &files);
    if let Some(folder) = index.or_else(|| beside.is_dir().then_some(&beside)) {
        return index::open(folder, &files);
    }
    let bytes = std::fs::metadata(&files.items)?.len();
    if bytes > IN_MEMORY {
        let (items, mib) = (files.items.display(), bytes >> 20);
        bail!(
            "{items}: the file has {mib} MiB: make an index first with `nestor-webshop index --data {}`",
            data.display()
        );
    }
    Catalogue::read(&files)
}

impl Environment for WebShop {
    const ID: &'static str = "webshop";
    const DOC: &'static str =
        "WebShop: buy what an instruction describes, by search and click in a catalogue of products";
    type Config = Config;
    type Instance = Play;

    fn open(config: Config) -> Result<WebShop> {
        let mut catalogue = match (&config.data, &config.generate) {
            (Some(data), None) => open_catalogue(data, config.full, config.index.as_deref())?,
            (None, Some(spec)) => {
                ensure!(!config.full && config.index.is_none(), "full and index belong to data, not to generate");
                Catalogue::generate(spec.clone()).context("generate")?
            }
            (Some(_), Some(_)) => bail!("data and generate exclude each other: remove one"),
            (None, None) => {
                bail!("set `data` to the folder with items_shuffle_1000.json, or `generate` for an invented shop")
            }
        };
        if let Some(prices) = &config.prices {
            catalogue = catalogue.with_prices(prices)?;
        }
        let goals = match &config.goals {
            Some(_) if config.human_goals => bail!("goals and human_goals exclude each other: remove one"),
            Some(path) => Goals::read(path, &catalogue)?,
            None => Goals::Own { human: config.human_goals },
        };
        WebShop::with(catalogue, goals, &config)
    }

    fn template(&self) -> String {
        let answer = if self.raw_commands { include_str!("answer_raw.txt") } else { include_str!("answer_tagged.txt") };
        format!("{}{answer}", include_str!("prompt.txt"))
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        match split {
            "train" | "eval" if self.goal.is_some() => Ok(1),
            "train" => Ok(self.goals.len(&self.catalogue) - self.held_out),
            "eval" => Ok(self.held_out),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }

    fn spawn(&self) -> Result<Play> {
        Ok(Play::default())
    }
}

nestor_plugin::export! { environments: [WebShop + expert + snapshot] }
