//! The plain structs that cross modules: [`Step`] and [`Episode`] of the rollout, [`Rows`] for the estimator,
//! [`Sequence`] and [`Batch`] for the update, and [`PluginFile`] for the run's record.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

pub use nestor_host::{PluginFile, Rows};
pub use nestor_images::{ImageKey, KeyedImage};
pub use nestor_plugin::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One environment step: one prompt, one response, one reward.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Token ids of the prompt, including the chat template: the whole prompt, or only those that this step adds to the conversation
    /// of the step that it continues.
    pub prompt: Vec<u32>,
    /// Number of the step whose conversation, prompt and response, goes before `prompt`; none where the prompt is whole. In a transcript
    /// it is the step before. Each step is continued by one other at most.
    pub continues: Option<u32>,
    /// Token ids that the policy sampled, including the end-of-sequence token if it was sampled.
    pub response: Vec<u32>,
    /// Behaviour log-prob of each response token (untruncated distribution at the sampling temperature); as long as
    /// `response`.
    pub logprobs: Vec<f32>,
    /// The images among the tokens of `prompt`, in their order.
    pub prompt_images: Vec<PromptImage>,
    /// The observation that the prompt was built from.
    pub observation: String,
    /// The messages of the observation, where it is a chat.
    #[serde(with = "json_text")]
    pub messages: Vec<Message>,
    /// The images of the observation: numbers of the episode's `images`.
    pub images: Vec<u32>,
    /// The admissible actions, where the environment lists them.
    pub admissible: Vec<String>,
    /// The response as text without special tokens, as the environment received it.
    pub response_text: String,
    /// The action that the environment parsed from the response.
    pub action: String,
    /// Key of the state in which the step was taken.
    pub anchor: Vec<u8>,
    pub reward: f64,
    /// True if the environment could parse the response.
    pub valid: bool,
    /// The episode ended here by the environment's rules.
    pub terminated: bool,
    /// The episode was cut here: step limit, full conversation, or a limit of the environment.
    pub truncated: bool,
    /// The environment's info after the response.
    #[serde(with = "json_text")]
    pub info: Map<String, Value>,
}

/// An image in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptImage {
    /// Its number among the episode's `images`.
    pub number: u32,
    /// Place of its first token. A policy may also sample the token of an image, which then is one of text.
    pub start: u32,
}

/// One play of a task from reset to done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Number of the group in the iteration, from 0.
    pub group: u32,
    /// Number of the episode in the iteration, from 0; groups are contiguous.
    pub episode: u32,
    /// Number of the task in the split, among those of all environments.
    pub task: u64,
    /// Seed of the environment's reset, the same for all episodes of a group.
    pub seed: u64,
    /// The goal, as the environment words it last.
    pub goal: String,
    pub steps: Vec<Step>,
    /// The images that its steps show, each once.
    pub images: Vec<KeyedImage>,
    pub won: bool,
    /// The environment's name for the kind of task, where it distinguishes kinds.
    pub task_type: Option<String>,
    /// Its environment, where the recipe lists environments.
    pub environment: Option<EpisodeEnvironment>,
    /// Key of the state after the last step; empty where the environment gives none.
    pub last_anchor: Vec<u8>,
    /// Return of one greedy episode from the group's start, where the estimator asks for it.
    pub greedy_return: Option<f64>,
    /// The environment's own numbers, the last one of each name.
    pub metrics: BTreeMap<String, f64>,
    /// The error of the environment that ended the episode, in its reset or in its last step: a failed episode has no
    /// outcome.
    pub failure: Option<String>,
}

/// The environment of an episode among those of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeEnvironment {
    pub name: String,
    /// Number of the task in its own split.
    pub task: u64,
}

impl Episode {
    /// The names under which its success is counted beside all others: its environment, where the recipe lists them, and
    /// its kind of task, where the environment has kinds.
    pub fn kinds(&self) -> Vec<String> {
        match (&self.environment, &self.task_type) {
            (None, kind) => kind.iter().cloned().collect(),
            (Some(environment), None) => vec![environment.name.clone()],
            (Some(environment), Some(kind)) => {
                vec![environment.name.clone(), format!("{}/{kind}", environment.name)]
            }
        }
    }

    /// True if the environment failed in it.
    pub fn failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The number of an image among those of the episode, to which it is added if it is new.
    pub fn number_of(&mut self, image: KeyedImage) -> u32 {
        let number = self.images.iter().position(|known| *known == image).unwrap_or_else(|| {
            self.images.push(image);
            self.images.len() - 1
        });
        number as u32
    }

    /// Each step as an episode of its own, with the images of its prompt.
    pub fn into_steps(self) -> impl Iterator<Item = Episode> {
        let images = self.images;
        self.steps.into_iter().map(move |mut step| {
            let mut own = Vec::new();
            for (number, shown) in step.prompt_images.iter_mut().enumerate() {
                own.extend(images.get(shown.number as usize).cloned());
                shown.number = number as u32;
            }
            step.images.clear();
            Episode { steps: vec![step], images: own, ..Episode::default() }
        })
    }

    /// The images of these numbers.
    pub fn shown<'a>(&'a self, numbers: &'a [u32]) -> impl Iterator<Item = &'a KeyedImage> {
        numbers.iter().filter_map(|&number| self.images.get(number as usize))
    }

    /// The images of a prompt that begins at this place of a sequence.
    pub fn placed(&self, start: usize, images: &[PromptImage]) -> impl Iterator<Item = SequenceImage> {
        images.iter().filter_map(move |shown| {
            let image = self.images.get(shown.number as usize)?.clone();
            Some(SequenceImage { start: start as u32 + shown.start, image })
        })
    }

    /// The numbers of the steps that make up the conversation of a step, which is the last of them.
    pub fn conversation(&self, step: usize) -> Vec<usize> {
        let mut all = vec![step];
        while let Some(before) = self.steps[all[all.len() - 1]].continues {
            all.push(before as usize);
        }
        all.reverse();
        all
    }

    /// Number of the step that the environment failed in; none where it failed in the reset or not at all.
    pub fn failed_step(&self) -> Option<usize> {
        self.steps.len().checked_sub(1).filter(|_| self.failed())
    }

    /// Number of steps whose action the episode took before in the same state.
    pub fn repeated_steps(&self) -> usize {
        let mut taken = HashSet::new();
        self.steps.iter().filter(|step| !taken.insert((&step.anchor, &step.action))).count()
    }

    /// Undiscounted sum of the environment's rewards.
    pub fn episode_return(&self) -> f64 {
        self.steps.iter().map(|s| s.reward).sum()
    }

    /// Key of the state after each step.
    pub fn next_anchors(&self) -> impl Iterator<Item = &[u8]> {
        let following = self.steps.iter().skip(1).map(|step| &step.anchor[..]);
        following.chain([&self.last_anchor[..]]).take(self.steps.len())
    }
}

/// JSON as a text, for formats without types, such as postcard.
mod json_text {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&serde_json::to_string(value).map_err(S::Error::custom)?)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// An image in a sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceImage {
    /// Place of its first token.
    pub start: u32,
    pub image: KeyedImage,
}

/// One sequence to train on: a prompt and a response (window history), or a whole episode with several responses
/// (transcript).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The images among them, in their order.
    pub images: Vec<SequenceImage>,
    /// The rows whose responses are in this sequence, in order of their spans.
    pub rows: Vec<u32>,
}

/// The training data of one iteration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Sequences in the order collected.
    pub sequences: Vec<Sequence>,
    pub rows: Rows,
    /// Log-probs of the response tokens recomputed before the first optimizer step, where the recipe asks for it.
    pub recomputed: Option<Vec<f32>>,
    /// Number of the last sequences that are of failed episodes.
    pub failed: usize,
}

impl Batch {
    /// The batch of the policy's update: this one, and the failed episodes behind it. It has all columns that the update reads.
    pub fn with_failed(&self, failed: &Batch) -> Cow<'_, Batch> {
        if failed.rows.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut all = self.clone();
        all.append_failed(failed);
        Cow::Owned(all)
    }

    /// The batch of an update that leaves some rows' responses out: their tokens remain for the responses behind them to see.
    pub fn without(&self, left_out: impl Fn(u32) -> bool) -> Batch {
        let mut all = self.clone();
        let scored = all.sequences.len() - all.failed;
        let (mut sequences, mut failed) = (Vec::new(), 0);
        for (number, mut sequence) in std::mem::take(&mut all.sequences).into_iter().enumerate() {
            sequence.rows.retain(|&row| !left_out(row));
            if !sequence.rows.is_empty() {
                failed += usize::from(number >= scored);
                sequences.push(sequence);
            }
        }
        (all.sequences, all.failed) = (sequences, failed);
        all
    }

    /// The response of a row, as token ids.
    pub fn response(&self, row: u32) -> &[u32] {
        let row = row as usize;
        let start = self.rows.span_start[row] as usize;
        let length = (self.rows.token_offsets[row + 1] - self.rows.token_offsets[row]) as usize;
        &self.sequences[self.rows.sequence[row] as usize].tokens[start..start + length]
    }

    fn append_failed(&mut self, other: &Batch) {
        let (sequences, rows) = (self.sequences.len() as u32, self.rows.len() as u32);
        let (tokens, own, added) = (self.response_tokens() as u64, &mut self.rows, &other.rows);
        let moved = |sequence: &Sequence| {
            let rows = sequence.rows.iter().map(|row| row + rows).collect();
            Sequence { rows, ..sequence.clone() }
        };
        self.sequences.extend(other.sequences.iter().map(moved));
        self.failed += other.sequences.len();
        own.group.extend(&added.group);
        own.episode.extend(&added.episode);
        own.step.extend(&added.step);
        own.sequence.extend(added.sequence.iter().map(|sequence| sequence + sequences));
        own.span_start.extend(&added.span_start);
        own.token_offsets.extend(added.token_offsets.iter().skip(1).map(|offset| offset + tokens));
        own.token_rewards.extend(&added.token_rewards);
        own.logprobs.extend(&added.logprobs);
        own.advantages.extend(&added.advantages);
        if let (Some(own), Some(added)) = (&mut own.ref_logprobs, &added.ref_logprobs) {
            own.extend(added);
        }
        if let (Some(own), Some(added)) = (&mut self.recomputed, &other.recomputed) {
            own.extend(added);
        }
    }

    /// The denominators of the ratios: recomputed log-probs, or else those of the engine.
    pub fn old_logprobs(&self) -> &[f32] {
        self.recomputed.as_deref().unwrap_or(&self.rows.logprobs)
    }

    /// Number of response tokens.
    pub fn response_tokens(&self) -> usize {
        self.rows.token_offsets.last().map_or(0, |&end| end as usize)
    }
}
