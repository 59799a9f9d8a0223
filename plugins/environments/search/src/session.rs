//! An episode: a question, and the turns in which it is answered.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use nestor_plugin::{Expert, Instance, Observation, Snapshot, Start, running};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use crate::Search;
use crate::questions::Question;
use crate::reward::last_answer;
use crate::turn::Turn;
use crate::world::expert;

/// One instance: its episode, if it was reset.
#[derive(Default)]
pub struct Play {
    episode: Option<Episode>,
}

struct Episode {
    question: Question,
    way: Way,
    over: bool,
}

/// The task and the turns of an episode, which make its state. A copy of it needs no search again.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Way {
    split: String,
    task: u64,
    turns: Vec<Turn>,
    searches: u32,
    cache_hits: u32,
}

impl Episode {
    fn start(world: &Search, split: &str, task: u64) -> Result<Episode> {
        let question = world.question(split, task)?.clone();
        let way = Way { split: split.into(), task, turns: Vec::new(), searches: 0, cache_hits: 0 };
        Ok(Episode { question, way, over: false })
    }

    /// Plays a response. If the search fails, the turn was not played.
    fn step(&mut self, world: &Search, response: &str) -> Result<Observation> {
        let action = world.projection.read(response);
        let last = self.way.turns.len() + 1 >= world.max_steps as usize;
        let terminated = action.answers();
        let mut text = String::new();
        // The reference implementation searches only if a turn follows that can use the result.
        if !terminated && !last {
            text = match action.query() {
                Some(query) => self.search(world, query)?,
                None => world.information.after_no_action().into(),
            };
        }
        let information = if action.query().is_some() { text.clone() } else { String::new() };
        self.way.turns.push(Turn { action: action.text.clone(), information });
        self.over = terminated || last;
        let mut seen = self.observe(world, text);
        seen.action = action.text;
        seen.valid = action.valid;
        seen.terminated = terminated;
        seen.truncated = last && !terminated;
        if self.over {
            self.score(world, &mut seen);
        }
        Ok(seen)
    }

    fn search(&mut self, world: &Search, query: &str) -> Result<String> {
        // No source answers an empty query in a useful way, and a server may refuse it.
        let passages = if query.is_empty() {
            Vec::new()
        } else {
            let answer = world.retriever.answer(query, world.topk)?;
            self.way.cache_hits += u32::from(answer.from_cache);
            answer.passages
        };
        self.way.searches += 1;
        Ok(world.information.show(&passages))
    }

    /// The answer is the last one of all actions. Passages do not count, so a page cannot win the episode.
    fn score(&self, world: &Search, seen: &mut Observation) {
        let actions: String = self.way.turns.iter().map(|turn| turn.action.as_str()).collect();
        let answer = last_answer(&actions);
        let score = world.reward.score(answer, &self.question.answers);
        seen.reward = score.reward;
        seen.info.insert("won".into(), score.won.into());
        seen.info.insert("f1".into(), score.f1.into());
        seen.info.insert("answer".into(), answer.into());
        seen.info.insert("right_answers".into(), json!(self.question.answers));
        seen.metrics.insert("f1".into(), score.f1);
    }

    fn observe(&self, world: &Search, text: String) -> Observation {
        let mut info = Map::new();
        info.insert("won".into(), false.into());
        info.insert("task_type".into(), self.question.source.clone().into());
        info.insert("searches".into(), self.way.searches.into());
        // A resumed run starts with an empty cache, and two siblings that ask at once both miss it.
        let numbers = [("searches", self.way.searches), ("measured_cache_hits", self.way.cache_hits)];
        let choices = world.generated.as_ref().and_then(|it| it.choices.as_ref());
        let open = choices.filter(|_| !self.over);
        Observation {
            anchor: text.clone().into_bytes(),
            text,
            task: self.question.question.clone(),
            admissible: open.map_or_else(Vec::new, |it| it.list(&self.question, &self.way.turns)),
            valid: true,
            info,
            metrics: BTreeMap::from(numbers.map(|(name, number)| (name.to_owned(), number.into()))),
            ..Observation::default()
        }
    }
}

impl Instance for Play {
    type World = Search;

    fn reset(&mut self, world: &Search, start: Start<'_>) -> Result<Observation> {
        let episode = self.episode.insert(Episode::start(world, start.split, start.task)?);
        Ok(episode.observe(world, episode.question.question.clone()))
    }

    fn step(&mut self, world: &Search, response: &str) -> Result<Observation> {
        running(&mut self.episode, |it| it.over)?.step(world, response)
    }
}

/// The expert of a generated world.
impl Expert for Play {
    fn next_action(&mut self, _world: &Search) -> Result<String> {
        let episode = running(&mut self.episode, |it| it.over)?;
        Ok(expert::act(&episode.question, &episode.way.turns))
    }

    fn response(&self, world: &Search, action: &str) -> Result<String> {
        Ok(expert::response(action, world.generated.as_ref().is_some_and(|it| it.think)))
    }
}

impl Snapshot for Play {
    fn save(&self, _world: &Search) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.episode.as_ref().context("not reset yet")?.way)?)
    }

    fn load(&mut self, world: &Search, state: &[u8]) -> Result<()> {
        let way: Way = serde_json::from_slice(state).context("this is no saved state of search")?;
        let mut episode = Episode::start(world, &way.split, way.task)?;
        episode.over = way.turns.len() >= world.max_steps as usize
            || way.turns.last().is_some_and(|turn| world.projection.read(&turn.action).answers());
        episode.way = way;
        self.episode = Some(episode);
        Ok(())
    }
}
