//! A row of rooms: find the key, take it to the door and open it. Shows a config, kinds of task, metrics and snapshots.

use nestor_plugin::anyhow::{Result, ensure};
use nestor_plugin::schemars::JsonSchema;
use nestor_plugin::serde::{Deserialize, Serialize};
use nestor_plugin::serde_json::{self, Map, json};
use nestor_plugin::{Environment, Expert, Instance, Observation, Snapshot, Start, unknown_split};

/// All that the episodes share: the keys of `env.config`.
#[derive(Deserialize, JsonSchema)]
#[serde(crate = "nestor_plugin::serde", default, deny_unknown_fields)]
#[schemars(crate = "nestor_plugin::schemars")]
struct House {
    /// Number of rooms in the row.
    rooms: u64,
    /// Steps after which an episode is cut; four for each room if omitted.
    max_steps: Option<u64>,
}

impl Default for House {
    fn default() -> Self {
        Self { rooms: 4, max_steps: None }
    }
}

impl Environment for House {
    const ID: &'static str = "keydoor";
    const DOC: &'static str = "Find the key in a row of rooms, take it to the door and open it.";
    type Config = Self;
    type Instance = Walk;

    fn open(config: Self) -> Result<Self> {
        ensure!((2..=100).contains(&config.rooms), "config key `rooms` must be from 2 to 100, not {}", config.rooms);
        Ok(config)
    }

    fn template(&self) -> String {
        "{{ observation }}".into()
    }

    /// A task is a start, a room of the key and another room of the door. Every fifth one is held out for `eval`.
    fn tasks(&self, split: &str) -> Result<u64> {
        let all = self.rooms * self.rooms * (self.rooms - 1);
        match split {
            "train" => Ok(all - all / 5),
            "eval" => Ok(all / 5),
            _ => Err(unknown_split(split, &["train", "eval"])),
        }
    }

    fn spawn(&self) -> Result<Walk> {
        Ok(Walk::default())
    }
}

/// One episode.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(crate = "nestor_plugin::serde")]
struct Walk {
    at: u64,
    key: u64,
    door: u64,
    has_key: bool,
    is_open: bool,
    steps: u64,
}

impl Walk {
    fn admissible(&self) -> Vec<String> {
        let take = (!self.has_key && self.at == self.key).then_some("take");
        let open = (self.has_key && self.at == self.door).then_some("open");
        ["left", "right"].into_iter().chain(take).chain(open).map(str::to_string).collect()
    }

    fn observe(&self, house: &House) -> Observation {
        let goal = if self.has_key { ("door", self.door) } else { ("key", self.key) };
        let way = match goal.1.cmp(&self.at) {
            std::cmp::Ordering::Less => "to the left",
            std::cmp::Ordering::Equal => "here",
            std::cmp::Ordering::Greater => "to the right",
        };
        let kind = if self.key < self.door { "key_left_of_door" } else { "key_right_of_door" };
        Observation {
            text: format!("room {}, the {} is {way}", self.at, goal.0),
            anchor: format!("{} {} {} {}", self.at, self.key, self.door, self.has_key).into(),
            admissible: self.admissible(),
            valid: true,
            terminated: self.is_open,
            truncated: !self.is_open && self.steps >= house.max_steps.unwrap_or(4 * house.rooms),
            info: Map::from_iter([
                ("won".to_string(), json!(self.is_open)),
                ("task_type".to_string(), json!(kind)),
                ("has_key".to_string(), json!(self.has_key)), // a column for estimators: info.has_key
            ]),
            metrics: [("found_key".to_string(), f64::from(self.has_key))].into(), // env/found_key in metrics.jsonl
            ..Observation::default()
        }
    }
}

impl Instance for Walk {
    type World = House;

    fn reset(&mut self, house: &House, start: Start<'_>) -> Result<Observation> {
        ensure!(start.task < house.tasks(start.split)?, "there is no task {} in split {}", start.task, start.split);
        let number = if start.split == "eval" { 5 * start.task + 4 } else { start.task + start.task / 4 };
        let (at, pair) = (number % house.rooms, number / house.rooms);
        let (key, other) = (pair / (house.rooms - 1), pair % (house.rooms - 1));
        *self = Walk { at, key, door: other + u64::from(other >= key), ..Walk::default() };
        Ok(self.observe(house))
    }

    fn step(&mut self, house: &House, response: &str) -> Result<Observation> {
        let valid = self.admissible().iter().any(|action| action == response);
        let action = if valid { response } else { "" };
        match action {
            "left" => self.at = self.at.saturating_sub(1),
            "right" => self.at = (self.at + 1).min(house.rooms - 1),
            "take" => self.has_key = true,
            "open" => self.is_open = true,
            _ => {}
        }
        self.steps += 1;
        let reward = f64::from(action == "open");
        Ok(Observation { reward, action: action.into(), valid, ..self.observe(house) })
    }
}

impl Expert for Walk {
    fn next_action(&mut self, _house: &House) -> Result<String> {
        let (goal, act) = if self.has_key { (self.door, "open") } else { (self.key, "take") };
        Ok(match goal.cmp(&self.at) {
            std::cmp::Ordering::Less => "left".into(),
            std::cmp::Ordering::Equal => act.into(),
            std::cmp::Ordering::Greater => "right".into(),
        })
    }

    fn response(&self, _house: &House, action: &str) -> Result<String> {
        Ok(action.into())
    }
}

impl Snapshot for Walk {
    fn save(&self, _house: &House) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    fn load(&mut self, _house: &House, state: &[u8]) -> Result<()> {
        *self = serde_json::from_slice(state)?;
        Ok(())
    }
}

nestor_plugin::export! { environments: [House + expert + snapshot] }
