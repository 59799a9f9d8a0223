//! The smallest complete plugin: an environment with an expert, and an estimator. Core's own tests train with it.

use anyhow::{Result, ensure};
use nestor_plugin::parse::think_action;
use nestor_plugin::{Environment, Estimator, Expert, Instance, Observation, Rows, Scores, Start, stats};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, json};

/// Walk from 0 to a target by `up` and `down`.
struct Toy {
    config: ToyConfig,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ToyConfig {
    /// The farthest target on either side.
    #[serde(default = "three")]
    reach: i64,
    /// Steps after which an episode is cut.
    #[serde(default = "six")]
    max_steps: u32,
}

fn three() -> i64 {
    3
}

fn six() -> u32 {
    6
}

impl Environment for Toy {
    const ID: &'static str = "toy";
    const DOC: &'static str = "Walk from 0 to a target by up and down.";
    type Config = ToyConfig;
    type Instance = Walk;

    fn open(config: ToyConfig) -> Result<Self> {
        ensure!(config.reach > 0, "config key `reach` must be at least 1, not {}", config.reach);
        Ok(Self { config })
    }

    fn template(&self) -> String {
        "{{ observation }} say <think></think><action>up or down</action>".into()
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        match split {
            "train" | "eval" => Ok(2 * self.config.reach as u64),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }

    fn spawn(&self) -> Result<Walk> {
        Ok(Walk { at: 0, target: 0, steps: 0 })
    }
}

struct Walk {
    at: i64,
    target: i64,
    steps: u32,
}

impl Walk {
    fn observe(&self, world: &Toy) -> Observation {
        let won = self.at == self.target;
        Observation {
            text: format!("at {} target {}", self.at, self.target),
            task: format!("reach {}", self.target),
            admissible: vec!["up".into(), "down".into()],
            anchor: format!("{}/{}", self.at, self.target).into_bytes(),
            valid: true,
            terminated: won,
            truncated: !won && self.steps >= world.config.max_steps,
            info: Map::from_iter([("won".to_string(), json!(won))]),
            ..Observation::default()
        }
    }
}

impl Instance for Walk {
    type World = Toy;

    fn reset(&mut self, world: &Toy, start: Start<'_>) -> Result<Observation> {
        ensure!(start.task < world.tasks(start.split)?, "there is no task {} in split {}", start.task, start.split);
        let distance = start.task as i64 / 2 + 1;
        *self = Walk { at: 0, target: if start.task.is_multiple_of(2) { distance } else { -distance }, steps: 0 };
        Ok(self.observe(world))
    }

    fn step(&mut self, world: &Toy, response: &str) -> Result<Observation> {
        let action = think_action(response, 20);
        self.at += match action.text.as_str() {
            "up" => 1,
            "down" => -1,
            _ => 0,
        };
        self.steps += 1;
        let seen = self.observe(world);
        Ok(Observation { reward: f64::from(seen.terminated), action: action.text, valid: action.valid, ..seen })
    }
}

impl Expert for Walk {
    fn next_action(&mut self, _world: &Toy) -> Result<String> {
        Ok(if self.target > self.at { "up".into() } else { "down".into() })
    }

    fn response(&self, _world: &Toy, action: &str) -> Result<String> {
        Ok(format!("<think></think><action>{action}</action>"))
    }
}

/// A = S - mean of S over the whole batch.
struct BatchMean;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoConfig {}

impl Estimator for BatchMean {
    const ID: &'static str = "toy";
    const DOC: &'static str = "Row score less the mean over the batch.";
    type Config = NoConfig;

    fn open(_config: NoConfig) -> Result<Self> {
        Ok(Self)
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let scores = stats::row_scores(rows);
        let mean = stats::Summary::of(&scores).map_or(0.0, |s| s.mean);
        out.broadcast(rows, &scores.iter().map(|s| s - mean).collect::<Vec<_>>());
        Ok(())
    }
}

nestor_plugin::export! { environments: [Toy + expert], estimators: [BatchMean] }
