//! The bodies of a worker's replies.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Result, anyhow, bail, ensure};
use nestor_plugin::Image;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A reply as its frame has it.
#[derive(Deserialize)]
pub struct Reply<'a> {
    /// The request's number.
    pub id: u64,
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(borrow)]
    data: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Observation,
    Description,
    Count,
    Text,
    State,
    Scores,
    Done,
    Error,
}

/// A reply by its type.
#[derive(Debug)]
pub enum Body {
    /// To a reset or a step.
    Observation(Box<Seen>),
    /// To the request that opens the class.
    Description(Description),
    /// A number of tasks, where the class says it.
    Count(Option<u64>),
    /// An action or a response of the expert.
    Text(String),
    /// The state of an episode, as the class saved it.
    State(Value),
    /// To completions that were scored together.
    Scores(Vec<Score>),
    /// Nothing more to say.
    Done,
    /// The environment raised an exception.
    Error(String),
}

impl Reply<'_> {
    /// Reads the data as its type has it. The pixels are those of an observation's images.
    pub fn into_body(self, pixels: &[u8]) -> Result<Body> {
        Ok(match self.kind {
            Kind::Observation => {
                let mut seen = read::<Box<Seen>>("observation", self.data)?;
                seen.images = images(&seen.observation.images, pixels)?;
                Body::Observation(seen)
            }
            _ if !pixels.is_empty() => bail!("the worker's reply has pixels and is no observation"),
            Kind::Description => Body::Description(read("description", self.data)?),
            Kind::Count => Body::Count(read("count", self.data)?),
            Kind::Text => Body::Text(read("text", self.data)?),
            Kind::State => Body::State(read("state", self.data)?),
            Kind::Scores => Body::Scores(read("scores", self.data)?),
            Kind::Done => Body::Done,
            Kind::Error => Body::Error(read::<Failure>("error", self.data)?.message),
        })
    }
}

/// Reads the data of a reply of this type. The error names the field.
fn read<T: DeserializeOwned>(kind: &str, data: &RawValue) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_str(data.get());
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let (path, start) = (error.path().to_string(), data.get().chars().take(40).collect::<String>());
        let place = if path == "." { start } else { format!("field `{path}`") };
        anyhow!("the worker's reply of type `{kind}` has data of another form: {place}: {}", error.into_inner())
    })
}

/// Cuts pixels into images of these widths and heights.
fn images(sizes: &[(u32, u32)], pixels: &[u8]) -> Result<Vec<Image>> {
    let count = |&(width, height): &(u32, u32)| u128::from(width) * u128::from(height);
    let all: u128 = sizes.iter().map(count).sum();
    ensure!(
        pixels.len() as u128 == 3 * all,
        "the worker's reply has {} bytes of pixels for images of {all} pixels",
        pixels.len()
    );
    let mut rest = pixels;
    let cut = |size: &(u32, u32)| {
        let (own, others) = rest.split_at(3 * count(size) as usize);
        rest = others;
        Image::new(size.0, size.1, own)
    };
    sizes.iter().map(cut).collect()
}

/// One completion of several that were scored together.
#[derive(Debug, Clone, Deserialize)]
pub struct Score {
    pub reward: f64,
    /// Numbers for metrics.jsonl.
    pub metrics: BTreeMap<String, f64>,
    /// The info after the step.
    pub info: Map<String, Value>,
}

#[derive(Deserialize)]
struct Failure {
    message: String,
}

/// The class as its first instance has it.
#[derive(Debug, Default, Deserialize)]
pub struct Description {
    /// The class's own prompt template.
    pub template: Option<String>,
    /// The optional methods that it has.
    pub has: Vec<String>,
}

impl Description {
    /// Returns true if the class has an optional method.
    pub fn has(&self, method: &str) -> bool {
        self.has.iter().any(|name| name == method)
    }
}

/// The result of a reset or a step.
#[derive(Debug, Deserialize)]
pub struct Seen {
    /// The texts, under the name that OpenEnv gives them.
    pub observation: Fields,
    /// The reward of the step.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
    /// It is over because a limit cut it.
    pub truncated: bool,
    /// The images, whose pixels come behind the JSON.
    #[serde(skip)]
    pub images: Vec<Image>,
}

/// The texts of an observation.
#[derive(Debug, Deserialize)]
pub struct Fields {
    /// The text that the policy sees.
    pub text: String,
    /// The messages that it sees, in place of the text.
    #[serde(default)]
    pub messages: Vec<Value>,
    /// The tools that the policy may call.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Width and height of each image.
    #[serde(default)]
    images: Vec<(u32, u32)>,
    /// The task's text.
    pub task: String,
    /// The admissible actions.
    pub admissible: Vec<String>,
    /// Key of the state; the text if omitted.
    pub anchor: Option<String>,
    /// The action that was read, after a step.
    #[serde(default)]
    pub action: String,
    /// The response had the right form.
    #[serde(default = "yes")]
    pub valid: bool,
    /// Numbers for metrics.jsonl.
    pub metrics: BTreeMap<String, f64>,
    /// The environment's info.
    pub metadata: Map<String, Value>,
}

fn yes() -> bool {
    true
}

impl Seen {
    /// Returns a hash of what must be the same when the episode is played again. Info may hold times.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Fields { text, messages, admissible, anchor, .. } = &self.observation;
        (text, messages, admissible, anchor, self.reward.to_bits(), self.done, self.truncated).hash(&mut hasher);
        for image in &self.images {
            (image.width(), image.height(), image.rgb()).hash(&mut hasher);
        }
        hasher.finish()
    }
}
