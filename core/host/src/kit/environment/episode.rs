//! An episode that can be played again and compared.

use anyhow::{Context, Result, ensure};
use nestor_plugin::{Image, Observation};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::player::Player;
use super::{Loaded, Start};
use crate::{Env, SharedEnv};

/// Most steps of an episode that the kit plays.
pub const MOST_STEPS: usize = 64;
/// Longest part of a text in a message.
const LONGEST_PART: usize = 80;

/// Text, images and admissible actions.
pub type Shown = (String, Vec<String>, Vec<String>);

/// The result of a reset or a step. Metrics are left out: they may be times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    text: String,
    /// Size and SHA-256 of each image: the pixels of many episodes would not fit into memory.
    images: Vec<String>,
    task: String,
    admissible: Vec<String>,
    action: String,
    reward: f64,
    terminated: bool,
    truncated: bool,
    valid: bool,
    info: Map<String, Value>,
    pub anchor: Vec<u8>,
}

impl From<Observation> for Seen {
    fn from(seen: Observation) -> Self {
        let Observation { text, messages, images, task, admissible, anchor, action, reward, .. } = seen;
        let Observation { terminated, truncated, valid, info, .. } = seen;
        let text = if messages.is_empty() { text } else { json!(messages).to_string() };
        let images = images.iter().map(digest).collect();
        Self { text, images, task, admissible, action, reward, terminated, truncated, valid, info, anchor }
    }
}

fn digest(image: &Image) -> String {
    let digest: String = Sha256::digest(image.rgb()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}x{} pixels, SHA-256 {digest}", image.width(), image.height())
}

impl Seen {
    pub fn is_over(&self) -> bool {
        self.terminated || self.truncated
    }

    /// The part that a policy sees: equal for states that it cannot tell apart.
    pub fn shown(&self) -> Shown {
        (self.text.clone(), self.images.clone(), self.admissible.clone())
    }

    /// The same, with the task's text.
    pub fn shown_with_task(&self) -> (Shown, String) {
        (self.shown(), self.task.clone())
    }

    /// Name and both forms of the first field that differs, apart from the anchor.
    fn difference(&self, other: &Self) -> Option<String> {
        let fields = |seen: &Self| {
            [
                ("observation", seen.text.clone()),
                ("list of images", seen.images.join("; ")),
                ("task text", seen.task.clone()),
                ("list of admissible actions", seen.admissible.join(", ")),
                ("action", seen.action.clone()),
                ("reward", seen.reward.to_string()),
                ("flag terminated", seen.terminated.to_string()),
                ("flag truncated", seen.truncated.to_string()),
                ("flag valid", seen.valid.to_string()),
                ("info", Value::Object(seen.info.clone()).to_string()),
            ]
        };
        let mut pairs = fields(self).into_iter().zip(fields(other));
        let ((name, before), (_, now)) = pairs.find(|(a, b)| a != b)?;
        let same = before.chars().zip(now.chars()).take_while(|(a, b)| a == b).count();
        let part = |text: &str| text.chars().skip(same.saturating_sub(20)).take(LONGEST_PART).collect::<String>();
        Some(format!("the {name} is {:?} and was {:?} before", part(&now), part(&before)))
    }
}

/// An episode as it was played.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Episode {
    pub start: Start,
    pub responses: Vec<String>,
    /// The results of the reset and of each step.
    pub seen: Vec<Seen>,
}

impl Episode {
    /// Plays an episode to its end, or for [`MOST_STEPS`] steps.
    pub fn record(env: &mut Env, start: &Start, player: &mut Player) -> Result<Self> {
        let mut last = env.reset(&start.split, start.task, start.seed)?;
        let mut episode = Self { start: start.clone(), responses: Vec::new(), seen: vec![last.clone().into()] };
        while !(last.terminated || last.truncated) && episode.responses.len() < MOST_STEPS {
            let response = player.respond(env, &last);
            last = env.step(&response)?;
            episode.responses.push(response);
            episode.seen.push(last.clone().into());
        }
        Ok(episode)
    }

    /// Plays the same responses again.
    pub fn replay(&self, env: &mut Env) -> Result<Vec<Seen>> {
        let Start { split, task, seed } = &self.start;
        let mut seen = vec![Seen::from(env.reset(split, *task, *seed)?)];
        for response in &self.responses {
            seen.push(env.step(response)?.into());
        }
        Ok(seen)
    }

    /// Plays the same responses again and fails where they give something else. Anchors are not compared.
    pub fn check(&self, env: &mut Env) -> Result<()> {
        let Start { split, task, seed } = &self.start;
        self.compare(0, &[env.reset(split, *task, *seed)?.into()])?;
        for (step, response) in self.responses.iter().enumerate() {
            let seen = env.step(response).context("a response that was played before")?;
            self.compare(step + 1, &[seen.into()])?;
        }
        Ok(())
    }

    /// Fails if what was seen from a step on is not what was recorded.
    pub fn compare(&self, from: usize, seen: &[Seen]) -> Result<()> {
        for (at, (before, now)) in self.seen[from..].iter().zip(seen).enumerate() {
            let difference = before.difference(now);
            let place = || match from + at {
                0 => "reset".to_string(),
                step => format!("step {}", step - 1),
            };
            ensure!(difference.is_none(), "{}, {}: {}", self.start, place(), difference.unwrap_or_default());
        }
        Ok(())
    }

    pub fn is_over(&self) -> bool {
        self.seen.last().is_some_and(Seen::is_over)
    }
}

impl Loaded<'_> {
    /// Episodes of sampled tasks, played one after the other by one instance.
    pub fn record(&self, shared: &SharedEnv, most: usize) -> Result<Vec<Episode>> {
        let (mut env, clock) = (shared.spawn()?, self.subject.clock());
        let starts = self.sampled(shared)?;
        let form = super::player::Form::find(&mut env, starts.first().context("there is no task")?)?;
        // Spread over all splits.
        let stride = starts.len().div_ceil(most).max(1);
        let chosen = starts.iter().step_by(stride).enumerate().take_while(|(at, _)| *at == 0 || !clock.is_over());
        chosen.map(|(at, start)| Episode::record(&mut env, start, &mut Player::new(form, at as u64))).collect()
    }
}
