//! A generated small world: invented people, towns, works and companies, a passage about each, and questions whose
//! answers are only in these passages.
//!
//! Each entity has three relations, and its passage states them. A one-hop question names an entity and asks for a
//! relation of it. A two-hop question names an entity and asks for a relation of a related one, which it does not name:
//! the first passage has that name, the second the answer.
//!
//! **Held out** are entities: a held-out question names an entity that no training question names. The passages about all
//! entities are in the corpus, and any entity may be an answer.

pub mod choices;
pub mod expert;
mod names;
mod relation;
#[cfg(test)]
mod tests;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use nestor_retrieve::Passage;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::questions::Question;
use names::Names;
use relation::{Kind, relations_of};

/// The source of questions that one passage answers.
pub const ONE_HOP: &str = "one_hop";
/// The source of questions that need two passages, one after the other.
pub const TWO_HOP: &str = "two_hop";

/// Describes a world to generate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorldConfig {
    /// Another seed gives another world.
    pub seed: u64,
    /// Number of entities, each with a passage: from 20 to 1000000.
    #[schemars(range(min = 20, max = 1_000_000))]
    pub entities: u32,
    /// Number of questions of split `train`.
    pub train: u32,
    /// Number of questions of split `eval`. They name other entities than the training questions.
    pub eval: u32,
    /// Share of the questions that need two searches, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub two_hop: f64,
    /// Size of names and texts.
    pub size: Size,
    /// List candidates as admissible actions: a search and an answer for each of the world's names that the question and
    /// the passages so far contain.
    pub choices: bool,
    /// The expert writes a `<think>` text before its action.
    pub think: bool,
}

impl Default for WorldConfig {
    fn default() -> Self {
        let size = Size::default();
        Self { seed: 0, entities: 1000, train: 1000, eval: 200, two_hop: 0.5, size, choices: false, think: false }
    }
}

/// Size of the names and texts of a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// Names of one word, passages of three facts, one phrase for each fact and question: for a small network.
    Small,
    /// Names of up to two words, passages with other sentences, several phrases for each fact and question.
    #[default]
    Real,
}

/// A corpus and its questions.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// One passage for each entity.
    pub passages: Vec<Passage>,
    /// The questions to train on.
    pub train: Vec<Question>,
    /// The held-out questions.
    pub eval: Vec<Question>,
}

/// Entities and their relations.
struct Facts {
    names: Vec<String>,
    /// For each entity the objects of its three relations.
    objects: Vec<[u32; 3]>,
}

/// A question as entity and relations: one relation, or two for two hops.
#[derive(Clone, Copy)]
struct Path {
    entity: u32,
    first: u8,
    second: Option<u8>,
}

/// Generates a world. The same config gives the same world.
///
/// # Errors
/// If the config has a number out of range, or the entities are too few for the questions.
pub fn generate(config: &WorldConfig) -> Result<World> {
    let &WorldConfig { seed, entities, train, eval, two_hop, size, .. } = config;
    ensure!((20..=1_000_000).contains(&entities), "generate.entities is {entities}: take 20 to 1000000");
    ensure!((0.0..=1.0).contains(&two_hop), "generate.two_hop is {two_hop}: take a share from 0 to 1");
    ensure!(train > 0, "generate.train is 0: take at least one question to train on");
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let facts = Facts::draw(size, entities, &mut dice);
    let passages = (0..entities).map(|entity| facts.passage(entity, size, &mut dice)).collect();

    let mut order: Vec<u32> = (0..entities).collect();
    order.shuffle(&mut dice);
    let share = f64::from(eval) / (f64::from(train) + f64::from(eval));
    let (held_out, rest) = order.split_at((f64::from(entities) * share).ceil() as usize);
    let train = facts.questions(("train", train), rest, config, &mut dice)?;
    let eval = facts.questions(("eval", eval), held_out, config, &mut dice)?;
    Ok(World { passages, train, eval })
}

/// The kind of an entity.
fn kind_of(entity: u32) -> Kind {
    Kind::ALL[entity as usize % Kind::ALL.len()]
}

impl Facts {
    fn draw(size: Size, entities: u32, dice: &mut ChaCha8Rng) -> Facts {
        let mut pool = Names::new(size, entities as usize);
        let names = (0..entities).map(|entity| pool.draw(kind_of(entity), dice)).collect();
        let mut object = |subject: u32, kind: Kind| {
            loop {
                let drawn = dice.random_range(0..entities / 4) * 4 + kind as u32;
                if drawn != subject {
                    return drawn;
                }
            }
        };
        let objects = (0..entities)
            .map(|subject| [0, 1, 2].map(|which| object(subject, relations_of(kind_of(subject))[which].object)))
            .collect();
        Facts { names, objects }
    }

    fn name(&self, entity: u32) -> &str {
        &self.names[entity as usize]
    }

    fn passage(&self, entity: u32, size: Size, dice: &mut ChaCha8Rng) -> Passage {
        let (kind, name) = (kind_of(entity), self.name(entity));
        let mut sentences: Vec<String> = relations_of(kind)
            .iter()
            .zip(self.objects[entity as usize])
            .map(|(relation, object)| {
                let states = &relation.states[..size.phrases(relation.states.len())];
                names::pick(states, dice).replace("{o}", self.name(object))
            })
            .collect();
        if size == Size::Real {
            for filler in kind.fillers().sample(dice, 2) {
                sentences.push(filler.replace("{y}", &names::year(dice).to_string()));
            }
        }
        sentences.shuffle(dice);
        let text = sentences.join(" ").replace("{s}", name);
        Passage { id: entity.to_string(), contents: format!("\"{name}\"\n{text}"), score: 0.0 }
    }

    /// Questions that name these entities; `split` is a split's name and the number of its questions.
    fn questions(
        &self,
        (split, count): (&str, u32),
        entities: &[u32],
        config: &WorldConfig,
        dice: &mut ChaCha8Rng,
    ) -> Result<Vec<Question>> {
        let (mut single, mut double) = (Vec::new(), Vec::new());
        for &entity in entities {
            for first in 0..3 {
                single.push(Path { entity, first, second: None });
                double.extend((0..3).map(|second| Path { entity, first, second: Some(second) }));
            }
        }
        double.retain(|path| self.needs_two_searches(path));
        let twice = (f64::from(count) * config.two_hop).round() as usize;
        let mut chosen = Vec::with_capacity(count as usize);
        for (mut paths, wanted, source) in [(single, count as usize - twice, ONE_HOP), (double, twice, TWO_HOP)] {
            ensure!(
                paths.len() >= wanted,
                "split {split} wants {wanted} {source} questions, but its {} entities have {}: raise generate.entities or \
                 lower generate.{split}",
                entities.len(),
                paths.len()
            );
            paths.shuffle(dice);
            chosen.extend_from_slice(&paths[..wanted]);
        }
        chosen.shuffle(dice);
        Ok(chosen.iter().map(|path| self.ask(path, config.size, dice)).collect())
    }

    fn object(&self, entity: u32, which: u8) -> u32 {
        self.objects[entity as usize][usize::from(which)]
    }

    /// True if neither the question nor the first passage has the answer, and a search for the entity finds no passage
    /// with it: the second passage does not name the entity.
    fn needs_two_searches(&self, path: &Path) -> bool {
        let bridge = self.object(path.entity, path.first);
        let answer = self.object(bridge, path.second.unwrap_or_default());
        answer != path.entity
            && !self.objects[path.entity as usize].contains(&answer)
            && !self.objects[bridge as usize].contains(&path.entity)
    }

    fn ask(&self, path: &Path, size: Size, dice: &mut ChaCha8Rng) -> Question {
        let phrase = |asks: &[&'static str], dice: &mut _| names::pick(&asks[..size.phrases(asks.len())], dice);
        let first = &relations_of(kind_of(path.entity))[usize::from(path.first)];
        let (name, near) = (self.name(path.entity), self.object(path.entity, path.first));
        let (question, answer, source) = match path.second {
            None => (phrase(&first.asks, dice).replace("{s}", name), near, ONE_HOP),
            Some(second) => {
                let asked = &relations_of(kind_of(near))[usize::from(second)];
                let related = first.noun.replace("{s}", name);
                (phrase(&asked.asks, dice).replace("{s}", &related), self.object(near, second), TWO_HOP)
            }
        };
        Question { question, answers: vec![self.name(answer).to_owned()], source: source.to_owned() }
    }
}

impl Size {
    /// The number of phrases in use, of those that there are.
    fn phrases(self, all: usize) -> usize {
        match self {
            Size::Small => 1,
            Size::Real => all,
        }
    }
}
