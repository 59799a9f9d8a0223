//! A walk to a target, with one planted fault on demand.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use nestor_plugin::parse::think_action;
use nestor_plugin::{Environment, Expert, Image, Instance, Observation, Snapshot, Start};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Tasks of each split: one per target.
const TASKS: u64 = 12;
const ACTIONS: [&str; 3] = ["up", "down", "rest"];

pub struct Planted {
    fault: Option<Fault>,
    max_steps: u64,
    /// For the faults that need a number in the world.
    shared: AtomicU64,
}

#[derive(Deserialize, JsonSchema)]
pub struct Config {
    #[serde(default)]
    fault: Option<Fault>,
    /// Steps after which an episode is cut.
    #[serde(default = "most_steps")]
    #[schemars(with = "u32")]
    max_steps: Value,
}

fn most_steps() -> Value {
    json!(16)
}

#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fault {
    ExitInSpawn,
    WrongTypeAccepted,
    UnknownSplitAccepted,
    LastTaskMissing,
    BadMetricName,
    /// The name of the actions is another one, and only in the loop over past steps.
    UnknownVariable,
    EmptyPrompt,
    NanReward,
    ResetAtRandom,
    ImageAtRandom,
    ProcessInImage,
    ProcessInText,
    SharedPosition,
    NotThreadSafe,
    SplitsOverlap,
    HangAfterDone,
    CrashOnEmpty,
    PanicOnLong,
    PanicOnNul,
    AdmissibleRefused,
    ExpertLoses,
    WonByNothing,
    AnchorsUnstable,
    AnchorsAllDifferent,
    SnapshotForgets,
    LeakInReset,
    LeakInSpawn,
}

impl Environment for Planted {
    const ID: &'static str = "planted";
    const DOC: &'static str = "A walk with one planted fault.";
    type Config = Config;
    type Instance = Walk;

    fn open(config: Config) -> Result<Self> {
        let max_steps = config.max_steps.as_u64();
        ensure!(
            max_steps.is_some() || config.fault == Some(Fault::WrongTypeAccepted),
            "config key `max_steps` must be a number, not {}",
            config.max_steps
        );
        Ok(Self { fault: config.fault, max_steps: max_steps.unwrap_or(16), shared: AtomicU64::new(0) })
    }

    fn template(&self) -> String {
        match self.fault {
            Some(Fault::UnknownVariable) => {
                "{{ image }}{{ observation }}{% for past in history %}{{ past.response }}{% endfor %}"
            }
            Some(Fault::EmptyPrompt) => "{% if step < 3 %}{{ image }}{{ observation }}{% endif %}",
            _ => "{{ image }}{{ observation }}",
        }
        .into()
    }

    fn tasks(&self, split: &str) -> Result<u64> {
        match split {
            "train" | "eval" => Ok(TASKS),
            _ if self.fault == Some(Fault::UnknownSplitAccepted) => Ok(TASKS),
            _ => Err(nestor_plugin::unknown_split(split, &["train", "eval"])),
        }
    }

    fn spawn(&self) -> Result<Walk> {
        match self.fault {
            Some(Fault::ExitInSpawn) => std::process::exit(0),
            Some(Fault::LeakInSpawn) => std::mem::forget(std::fs::File::open("/dev/null")?),
            _ => {}
        }
        Ok(Walk::default())
    }
}

/// One episode.
#[derive(Default, Clone, Serialize, Deserialize)]
pub struct Walk {
    at: i64,
    target: i64,
    steps: u64,
    over: bool,
    way: String,
}

impl Walk {
    /// A picture of one row: the place is red, the target green.
    fn picture(&self, world: &Planted) -> Result<Image> {
        let mut row = [[0; 3]; 41];
        row[(20 + self.target.clamp(-20, 20)) as usize][1] = 255;
        row[(20 + self.at.clamp(-20, 20)) as usize][0] = 255;
        row[0][2] = match world.fault {
            Some(Fault::ImageAtRandom) => world.shared.fetch_add(1, Ordering::Relaxed) as u8,
            Some(Fault::ProcessInImage) => {
                static PROCESS: OnceLock<u32> = OnceLock::new();
                *PROCESS.get_or_init(std::process::id) as u8
            }
            _ => 0,
        };
        Image::new(41, 1, row.concat())
    }

    fn observe(&self, world: &Planted) -> Result<Observation> {
        let won = self.at == self.target;
        let mut text = format!("at {} target {}", self.at, self.target);
        let mut anchor = text.clone();
        match world.fault {
            Some(Fault::ProcessInText) => {
                static PROCESS: OnceLock<u32> = OnceLock::new();
                text += &format!(" in process {}", PROCESS.get_or_init(std::process::id));
            }
            Some(Fault::AnchorsUnstable) => anchor += &format!(" {self:p}"),
            Some(Fault::AnchorsAllDifferent) => anchor += &self.way,
            _ => {}
        }
        Ok(Observation {
            text,
            images: vec![self.picture(world)?],
            task: "Walk to the target.".into(),
            admissible: ACTIONS.map(String::from).to_vec(),
            anchor: anchor.into_bytes(),
            valid: true,
            terminated: won,
            truncated: !won && self.steps >= world.max_steps,
            info: Map::from_iter([("won".to_string(), json!(won))]),
            metrics: [("distance".to_string(), (self.target - self.at).abs() as f64)].into(),
            ..Observation::default()
        })
    }
}

impl Instance for Walk {
    type World = Planted;

    fn reset(&mut self, world: &Planted, start: Start<'_>) -> Result<Observation> {
        let tasks = TASKS - u64::from(world.fault == Some(Fault::LastTaskMissing));
        ensure!(start.task < tasks, "there is no task {} in split {}", start.task, start.split);
        let distance = start.task as i64 + 3;
        let apart = start.split == "eval" && world.fault != Some(Fault::SplitsOverlap);
        let mut at = (start.seed % 3) as i64 - 1;
        match world.fault {
            Some(Fault::ResetAtRandom) => at = (world.shared.fetch_add(1, Ordering::Relaxed) % 3) as i64 - 1,
            Some(Fault::SharedPosition) => world.shared.store(at as u64, Ordering::Relaxed),
            Some(Fault::NotThreadSafe) => {
                world.shared.store(at as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
                at = world.shared.load(Ordering::Relaxed) as i64;
            }
            Some(Fault::LeakInReset) => std::mem::forget(black_box(vec![1u8; 64 << 10])),
            _ => {}
        }
        *self = Walk { at, target: if apart { -distance } else { distance }, ..Walk::default() };
        self.observe(world)
    }

    fn step(&mut self, world: &Planted, response: &str) -> Result<Observation> {
        match world.fault {
            Some(Fault::HangAfterDone) if self.over => std::thread::sleep(Duration::from_secs(1000)),
            Some(Fault::CrashOnEmpty) if response.is_empty() => std::process::abort(),
            Some(Fault::PanicOnLong) => assert!(response.len() < 1 << 20, "too long"),
            Some(Fault::PanicOnNul) => assert!(!response.contains('\0'), "a NUL"),
            _ => {}
        }
        ensure!(!self.over, "the episode is over");
        if world.fault == Some(Fault::SharedPosition) {
            self.at = world.shared.load(Ordering::Relaxed) as i64;
        }
        let read = think_action(response, 20);
        let moved = match read.text.as_str() {
            "up" => 1,
            "down" => -1,
            _ => 0,
        };
        self.at += moved;
        self.way += &read.text;
        self.steps += 1;
        if world.fault == Some(Fault::SharedPosition) {
            world.shared.store(self.at as u64, Ordering::Relaxed);
        }
        if world.fault == Some(Fault::WonByNothing) && response.is_empty() {
            self.at = self.target;
        }
        let mut seen = self.observe(world)?;
        self.over = seen.terminated || seen.truncated;
        seen.reward = f64::from(seen.terminated);
        seen.valid = read.valid && ACTIONS.contains(&read.text.as_str());
        match world.fault {
            Some(Fault::NanReward) => seen.reward = f64::NAN,
            Some(Fault::BadMetricName) => _ = seen.metrics.insert("Distance/m".into(), 1.0),
            Some(Fault::AdmissibleRefused) => seen.valid &= read.text != "rest",
            _ => {}
        }
        seen.action = read.text;
        Ok(seen)
    }
}

impl Expert for Walk {
    fn next_action(&mut self, world: &Planted) -> Result<String> {
        let up = (self.target > self.at) != (world.fault == Some(Fault::ExpertLoses));
        Ok(if up { "up" } else { "down" }.into())
    }

    fn response(&self, _world: &Planted, action: &str) -> Result<String> {
        Ok(format!("<think></think><action>{action}</action>"))
    }
}

impl Snapshot for Walk {
    fn save(&self, world: &Planted) -> Result<Vec<u8>> {
        let mut saved = self.clone();
        if world.fault == Some(Fault::SnapshotForgets) {
            saved.steps = 0;
            saved.at = 0;
        }
        Ok(serde_json::to_vec(&saved)?)
    }

    fn load(&mut self, _world: &Planted, state: &[u8]) -> Result<()> {
        match serde_json::from_slice(state) {
            Ok(saved) => *self = saved,
            Err(error) => bail!("this is no saved state: {error}"),
        }
        Ok(())
    }
}
