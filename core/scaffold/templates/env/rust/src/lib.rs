//! Walk over the cells 0 to 9 to a target by saying `up` or `down`.

use nestor_plugin::anyhow::{Result, ensure};
use nestor_plugin::serde_json::Map;
use nestor_plugin::{Environment, Expert, Instance, NoConfig, Observation, Start, unknown_split};

/// All that the episodes share: nothing here.
struct Line;

impl Environment for Line {
    const ID: &'static str = "my_plugin";
    const DOC: &'static str = "Walk to a target.";
    type Config = NoConfig;
    type Instance = Walk;

    fn open(_config: NoConfig) -> Result<Self> {
        Ok(Self)
    }
    fn template(&self) -> String {
        "{{ observation }}".into()
    }
    fn tasks(&self, split: &str) -> Result<u64> {
        match split {
            "train" => Ok(50),
            "eval" => Ok(40),
            _ => Err(unknown_split(split, &["train", "eval"])),
        }
    }
    fn spawn(&self) -> Result<Walk> {
        Ok(Walk::default())
    }
}

/// One episode.
#[derive(Default)]
struct Walk {
    at: i64,
    target: i64,
    steps: u32,
}

impl Walk {
    fn observe(&self) -> Observation {
        let won = self.at == self.target;
        Observation {
            text: format!("at {}, go {:+}", self.at, self.target - self.at),
            anchor: format!("{}/{}", self.at, self.target).into(), // equal where the state is equal: no step counter
            admissible: vec!["up".into(), "down".into()],
            valid: true,
            terminated: won,
            truncated: !won && self.steps >= 20,
            info: Map::from_iter([("won".into(), won.into())]),
            ..Observation::default()
        }
    }
}

impl Instance for Walk {
    type World = Line;

    /// The distance is odd in the tasks of split `train`, and even in those of `eval`.
    fn reset(&mut self, line: &Line, Start { split, task, .. }: Start<'_>) -> Result<Observation> {
        ensure!(task < line.tasks(split)?, "there is no task {task} in split {split}");
        let (first, each) = if split == "eval" { (2, 4) } else { (1, 5) };
        let (at, other) = (task as i64 / each, task as i64 % each);
        *self = Walk { at, target: (at + first + 2 * other) % 10, steps: 0 };
        Ok(self.observe())
    }
    fn step(&mut self, _line: &Line, response: &str) -> Result<Observation> {
        let (action, at) = match response {
            "up" => ("up", (self.at + 1).min(9)),
            "down" => ("down", (self.at - 1).max(0)),
            _ => ("", self.at),
        };
        *self = Walk { at, steps: self.steps + 1, ..*self };
        let seen = self.observe();
        let reward = f64::from(seen.terminated);
        Ok(Observation { reward, action: action.into(), valid: !action.is_empty(), ..seen })
    }
}

/// Optional: a warm start imitates the expert.
impl Expert for Walk {
    fn next_action(&mut self, _line: &Line) -> Result<String> {
        Ok(if self.target > self.at { "up".into() } else { "down".into() })
    }
    fn response(&self, _line: &Line, action: &str) -> Result<String> {
        Ok(action.into()) // the whole response is the action
    }
}

nestor_plugin::export! { environments: [Line + expert] }
