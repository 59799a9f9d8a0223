//! WebShop: buy the product that an instruction describes, by searching and clicking in a catalogue of products. Yao et al.
//! 2022, arXiv 2207.01206. The engine behaves as the original one (pages, search, score); the rules of play (answers,
//! reward, step limit, splits) are those of the GiGPO paper's reference implementation.
//!
//! Tasks are goals: the first ones are split `eval`, the others `train`. The seed of a reset has no effect.

#![forbid(unsafe_code)]

pub mod bench;
pub mod catalogue;
pub mod draw;
mod expert;
pub mod generate;
pub mod goal;
pub mod pages;
pub mod reward;
pub mod session;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use catalogue::load::Files;
use catalogue::{Catalogue, index};
use expert::Plan;
use generate::Spec;
use goal::Goal;
use goal::list::{Goals, held_out};
use nestor_plugin::{Environment, Expert, Instance, Observation, Snapshot, Start};
use reward::{Purchase, Score};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use session::Session;

/// The keys of `env.config`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Folder of the shop's files: `items_shuffle_1000.json` and `items_ins_v2_1000.json`, or the full `items_shuffle.json`
    /// and `items_ins_v2.json`, and `items_human_ins.json`.
    #[serde(default)]
    pub data: Option<PathBuf>,
    /// Take the full files where the folder has those of 1,000 products too.
    #[serde(default)]
    pub full: bool,
    /// Folder of the index that `nestor-webshop index` made; by default `nestor_index` or `nestor_index_1000` in `data`, if
    /// it is there. A catalogue of over 256 MiB needs one.
    #[serde(default)]
    pub index: Option<PathBuf>,
    /// Play in a generated shop instead of files.
    #[serde(default)]
    pub generate: Option<Spec>,
    /// An exported list of goals (JSON). Without it the goals follow from the catalogue.
    #[serde(default)]
    pub goals: Option<PathBuf>,
    /// Prices by ASIN (JSON). Without it a product with a range of prices has one that depends on its ASIN.
    #[serde(default)]
    pub prices: Option<PathBuf>,
    /// Take the goals that people wrote instead of synthetic ones.
    #[serde(default)]
    pub human_goals: bool,
    /// Play this goal alone, by its place in the list of goals.
    #[serde(default)]
    pub goal: Option<u64>,
    /// The number of goals for split `eval`, the first of the list. If omitted: 500, or half of a list of fewer than 1,000.
    #[serde(default)]
    pub held_out: Option<u64>,
    /// Steps after which an episode is cut. If omitted: 15, or no limit with raw_commands.
    #[serde(default)]
    pub max_steps: Option<u32>,
    /// Take each response as the action itself (`click[buy now]`) instead of a tagged answer. The observation is then the
    /// page's whole text, and `info` has `available_actions`.
    #[serde(default)]
    pub raw_commands: bool,
}

/// Steps of an episode in the reference implementation.
const MAX_STEPS: u32 = 15;
/// Reward of a purchase with score 1.
const REWARD: f64 = 10.0;
/// In a response without tags, this many characters at the end count as its action.
const TAIL: usize = 20;
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

/// Scores the purchase of a product with chosen options. Returns its ASIN too.
fn score_purchase(
    catalogue: &Catalogue,
    goal: &Goal,
    product: u32,
    options: &[(String, String)],
) -> Result<(String, Score)> {
    let product = catalogue.store.product(product)?;
    let purchase = Purchase { product: &product, price: catalogue.price(&product), options };
    let wanted = catalogue.store.find(&goal.asin)?.map(|number| catalogue.store.product(number)).transpose()?;
    let nouns = wanted.filter(|it| it.card.title == goal.name).and_then(|it| it.nouns);
    Ok((product.card.asin.to_owned(), reward::score(&purchase, goal, nouns.as_deref())))
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
        Ok(Play { episode: None })
    }
}

/// One instance: its episode, if it was reset.
pub struct Play {
    episode: Option<Episode>,
}

struct Episode {
    session: Session,
    index: u64,
    /// The expert's way, once it was asked.
    plan: Option<Plan>,
    /// The purchase: ASIN and score.
    bought: Option<(String, Score)>,
    way: Way,
    over: bool,
}

/// The task and the actions of an episode, which make its state.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Way {
    split: String,
    task: u64,
    actions: Vec<String>,
}

impl Episode {
    fn start(world: &WebShop, split: &str, task: u64) -> Result<Episode> {
        let (index, goal) = world.choose(split, task)?;
        let way = Way { split: split.into(), task, actions: Vec::new() };
        Ok(Episode { session: Session::new(goal), index, plan: None, bought: None, way, over: false })
    }

    fn step(&mut self, world: &WebShop, action: String) -> Result<Observation> {
        let bought = self.session.act(&world.catalogue, &action)?;
        if let Some(product) = bought {
            let (asin, score) = score_purchase(&world.catalogue, self.session.goal(), product, self.session.options())?;
            self.session.close(&asin, score.score);
            self.bought = Some((asin, score));
        }
        self.way.actions.push(action.clone());
        let mut seen = self.observe(world);
        seen.action = action;
        seen.reward = if self.won() { REWARD } else { 0.0 };
        seen.truncated = !seen.terminated && self.way.actions.len() >= world.max_steps as usize;
        self.over = seen.terminated || seen.truncated;
        Ok(seen)
    }

    fn won(&self) -> bool {
        self.bought.as_ref().is_some_and(|(_, score)| score.score == 1.0)
    }

    fn observe(&self, world: &WebShop) -> Observation {
        let (goal, page) = (self.session.goal(), self.session.page());
        let task_score = self.bought.as_ref().map_or(0.0, |(_, score)| score.score);
        let mut info = Map::new();
        info.insert("won".into(), self.won().into());
        info.insert("task_score".into(), task_score.into());
        info.insert("goal".into(), self.index.into());
        if !goal.category.is_empty() {
            info.insert("task_type".into(), goal.category.clone().into());
        }
        if let Some((asin, score)) = &self.bought {
            info.insert("bought".into(), asin.clone().into());
            info.insert(
                "options".into(),
                self.session.options().iter().cloned().map(|(k, v)| (k, Value::from(v))).collect(),
            );
            info.extend(score.parts());
        }
        let mut admissible = Vec::new();
        if let Some(actions) = &page.actions {
            if actions.has_search_bar {
                admissible.push("search[<your query>]".to_owned());
            }
            admissible.extend(actions.clickables.iter().map(|text| format!("click[{text}]")));
        }
        let body = page.body();
        let text = if world.raw_commands {
            info.insert("available_actions".into(), json!(page.actions));
            page.text()
        } else {
            body.clone()
        };
        Observation {
            text,
            task: nestor_plugin::parse::strip(&goal.instruction_text).to_owned(),
            admissible,
            anchor: body.into_bytes(),
            terminated: self.bought.is_some(),
            valid: true,
            info,
            metrics: BTreeMap::from([("task_score".to_owned(), task_score)]),
            ..Observation::default()
        }
    }
}

/// Returns the episode if it can continue.
fn running(episode: &mut Option<Episode>) -> Result<&mut Episode> {
    let episode = episode.as_mut().context("not reset yet")?;
    ensure!(!episode.over, "the episode is over: reset before the next step");
    Ok(episode)
}

impl Instance for Play {
    type World = WebShop;

    fn reset(&mut self, world: &WebShop, start: Start<'_>) -> Result<Observation> {
        let episode = self.episode.insert(Episode::start(world, start.split, start.task)?);
        Ok(episode.observe(world))
    }

    fn step(&mut self, world: &WebShop, response: &str) -> Result<Observation> {
        let episode = running(&mut self.episode)?;
        let (action, valid) = if world.raw_commands {
            (response.to_owned(), true)
        } else {
            let read = nestor_plugin::parse::think_action(response, TAIL);
            (read.text, read.valid)
        };
        Ok(Observation { valid, ..episode.step(world, action)? })
    }
}

impl Expert for Play {
    fn next_action(&mut self, world: &WebShop) -> Result<String> {
        let episode = running(&mut self.episode)?;
        let plan = match episode.plan.take() {
            Some(plan) => plan,
            None => Plan::new(&world.catalogue, episode.session.goal())?,
        };
        let action = plan.next_action(&world.catalogue, &episode.session);
        episode.plan = Some(plan);
        action
    }

    fn response(&self, world: &WebShop, action: &str) -> Result<String> {
        Ok(if world.raw_commands { action.into() } else { format!("<think></think><action>{action}</action>") })
    }
}

impl Snapshot for Play {
    fn save(&self, _world: &WebShop) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.episode.as_ref().context("not reset yet")?.way)?)
    }

    /// Plays the saved actions again.
    fn load(&mut self, world: &WebShop, state: &[u8]) -> Result<()> {
        let way: Way = serde_json::from_slice(state).context("this is no saved state of webshop")?;
        let mut episode = Episode::start(world, &way.split, way.task)?;
        for action in way.actions {
            ensure!(!episode.over, "the saved state has actions after the end of its episode");
            episode.step(world, action)?;
        }
        self.episode = Some(episode);
        Ok(())
    }
}

nestor_plugin::export! { environments: [WebShop + expert + snapshot] }
