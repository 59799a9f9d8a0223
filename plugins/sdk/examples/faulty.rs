//! Plugins with a fault on demand, which `fault` selects. `faulty` breaks a rule of the interface, for the tests of the host's
//! guards. `planted`, `planted_estimator` and `planted_loss` are sound otherwise, for the tests of the kit: every fault must be found by the
//! check that is named for it, and by no other.

#[path = "faulty/environment.rs"]
mod environment;
#[path = "faulty/estimator.rs"]
mod estimator;
#[path = "faulty/loss.rs"]
mod loss;

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail, ensure};
use nestor_plugin::{Environment, Estimator, Instance, Needs, Observation, Rows, Scores, Start};
use schemars::JsonSchema;
use serde::Deserialize;

use self::environment::Planted;
use self::estimator::PlantedEstimator;
use self::loss::PlantedLoss;

/// Does one thing wrong.
struct Faulty {
    fault: Fault,
    calls: AtomicU64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FaultyConfig {
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fault {
    /// Panics when it is opened.
    PanicOpen,
    /// Panics in a step, or in score.
    Panic,
    /// Returns an error from a step, or from score.
    Error,
    /// Fails in every fifth reset or step.
    Flaky,
    /// Gives a reward that is not finite.
    NanReward,
    /// Leaves the last token of the last row unwritten.
    Unwritten,
    /// Writes an infinite return.
    InfiniteReturn,
    /// Fails with all columns that it received as the message.
    Echo,
}

impl Environment for Faulty {
    const ID: &'static str = "faulty";
    const DOC: &'static str = "Breaks a rule.";
    type Config = FaultyConfig;
    type Instance = Player;

    fn open(config: FaultyConfig) -> Result<Self> {
        assert!(config.fault != Fault::PanicOpen, "asked to panic while opening");
        Ok(Self { fault: config.fault, calls: AtomicU64::new(0) })
    }

    fn template(&self) -> String {
        "{{ observation }}".into()
    }

    fn tasks(&self, _split: &str) -> Result<u64> {
        Ok(8)
    }

    fn spawn(&self) -> Result<Player> {
        Ok(Player)
    }
}

struct Player;

impl Instance for Player {
    type World = Faulty;

    fn reset(&mut self, world: &Faulty, _start: Start<'_>) -> Result<Observation> {
        let calls = world.calls.fetch_add(1, Ordering::Relaxed);
        ensure!(world.fault != Fault::Flaky || calls % 5 != 4, "call {calls} fails");
        Ok(Observation { text: "ready".into(), valid: true, ..Observation::default() })
    }

    fn step(&mut self, world: &Faulty, response: &str) -> Result<Observation> {
        if response != "now" {
            return self.reset(world, Start { split: "train", task: 0, seed: 0 });
        }
        match world.fault {
            Fault::Panic => panic!("asked to panic"),
            Fault::Error => bail!("asked to fail"),
            _ => Ok(Observation { reward: f64::NAN, ..Observation::default() }),
        }
    }
}

impl Estimator for Faulty {
    const ID: &'static str = "faulty";
    const DOC: &'static str = "Breaks a rule.";
    type Config = FaultyConfig;

    fn open(config: FaultyConfig) -> Result<Self> {
        Ok(Self { fault: config.fault, calls: AtomicU64::new(0) })
    }

    fn needs(&self) -> Needs {
        let all = self.fault == Fault::Echo;
        Needs { values: all, anchors: all, reference: all }
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let last = out.advantages.len() - 1;
        let unwritten = out.advantages[last];
        out.broadcast(rows, &vec![0.0; rows.len()]);
        match self.fault {
            Fault::Panic => panic!("asked to panic"),
            Fault::Error => bail!("asked to fail"),
            Fault::Echo => bail!("{rows:?}"),
            Fault::InfiniteReturn => out.returns[last] = f32::INFINITY,
            _ => out.advantages[last] = unwritten,
        }
        Ok(())
    }
}

nestor_plugin::export! {
    environments: [Faulty, Planted + expert + snapshot],
    estimators: [Faulty, PlantedEstimator + columns + parts + state],
    losses: [PlantedLoss],
}
