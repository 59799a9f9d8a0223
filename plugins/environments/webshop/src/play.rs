//! Plays episodes: actions in, pages and rewards out.

use std::collections::BTreeMap;

use anyhow::Result;
use nestor_plugin::{Expert, Instance, Observation, Replay, Replayed, Snapshot, Start};
use serde_json::{Map, Value, json};

use crate::WebShop;
use crate::catalogue::Catalogue;
use crate::expert::Plan;
use crate::goal::Goal;
use crate::reward::{self, Purchase, Score};
use crate::session::Session;

/// Reward of a purchase with score 1.
pub const REWARD: f64 = 10.0;
/// In a response without tags, this many characters at the end count as its action.
const TAIL: usize = 20;

/// One instance.
#[derive(Default)]
pub struct Play {
    episode: Replayed<Episode>,
}

struct Episode {
    session: Session,
    index: u64,
    /// The expert's way, once it was asked.
    plan: Option<Plan>,
    /// The purchase: ASIN and score.
    bought: Option<(String, Score)>,
    steps: u32,
}

impl Replay for Episode {
    type World = WebShop;
    type Action = String;

    fn start(world: &WebShop, split: &str, task: u64) -> Result<Episode> {
        let (index, goal) = world.choose(split, task)?;
        Ok(Episode { session: Session::new(goal), index, plan: None, bought: None, steps: 0 })
    }

    fn play(&mut self, world: &WebShop, action: String) -> Result<Observation> {
        let bought = self.session.act(&world.catalogue, &action)?;
        if let Some(product) = bought {
            let (asin, score) = score_purchase(&world.catalogue, self.session.goal(), product, self.session.options())?;
            self.session.close(&asin, score.score);
            self.bought = Some((asin, score));
        }
        self.steps += 1;
        let mut seen = self.observe(world);
        seen.action = action;
        seen.reward = if self.won() { REWARD } else { 0.0 };
        seen.truncated = !seen.terminated && self.steps >= world.max_steps;
        Ok(seen)
    }
}

impl Episode {
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
        if is_task_type(&goal.category) {
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

/// True if a category can be the kind of a task, as those of the real files can: metrics have its name.
fn is_task_type(category: &str) -> bool {
    (1..=128).contains(&category.len()) && !category.contains(|c: char| c == '/' || c.is_control())
}

impl Instance for Play {
    type World = WebShop;

    fn reset(&mut self, world: &WebShop, start: Start<'_>) -> Result<Observation> {
        Ok(self.episode.start(world, start)?.observe(world))
    }

    fn step(&mut self, world: &WebShop, response: &str) -> Result<Observation> {
        let (action, valid) = if world.raw_commands {
            (response.to_owned(), true)
        } else {
            let read = nestor_plugin::parse::think_action(response, TAIL);
            (read.text, read.valid)
        };
        Ok(Observation { valid, ..self.episode.play(world, action)? })
    }
}

impl Expert for Play {
    fn next_action(&mut self, world: &WebShop) -> Result<String> {
        let episode = self.episode.running()?;
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
        self.episode.save()
    }

    fn load(&mut self, world: &WebShop, state: &[u8]) -> Result<()> {
        self.episode.load(world, state)
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
