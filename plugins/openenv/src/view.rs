//! Reads a server's observation by the config's paths. Nothing here does input or output.

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Image, Message, Observation};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::config::{Config, Paths};
use crate::picture::Pictures;
use crate::wire::{Answer, start};

/// The most fields that an error lists.
const SHOWN: usize = 20;

/// A path into the observation: names of fields and numbers of list entries, separated by dots. A negative number counts
/// from the end of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Path(String);

impl Path {
    fn parse(key: &str, path: &str) -> Result<Self> {
        let fits = path.split('.').all(|part| !part.is_empty()) && !path.contains(char::is_control);
        ensure!(fits, "config key `{key}`: `{path}` is not a path; write it like metadata.won or messages.-1.content");
        Ok(Self(path.to_string()))
    }

    /// Returns the value; none where a part is missing.
    fn find<'a>(&self, fields: &'a Map<String, Value>) -> Option<&'a Value> {
        let mut parts = self.0.split('.');
        let first = fields.get(parts.next()?)?;
        parts.try_fold(first, |value, part| match value {
            Value::Object(fields) => fields.get(part),
            Value::Array(list) => list.get(position(list, part)?),
            _ => None,
        })
    }

    /// Removes the value; an entry of a list becomes null, since others are found by their position.
    fn remove(&self, fields: &mut Map<String, Value>) {
        let mut parts = self.0.split('.').peekable();
        let Some(first) = parts.next() else { return };
        if parts.peek().is_none() {
            fields.remove(first);
            return;
        }
        let mut value = fields.get_mut(first);
        while let (Some(parent), Some(part)) = (value.take(), parts.next()) {
            let is_last = parts.peek().is_none();
            value = match parent {
                Value::Object(fields) if is_last => fields.remove(part).and(None),
                Value::Object(fields) => fields.get_mut(part),
                Value::Array(list) => position(list, part).and_then(|at| list.get_mut(at)),
                _ => None,
            };
            if let (true, Some(entry)) = (is_last, value.as_deref_mut()) {
                *entry = Value::Null;
            }
        }
    }

    fn missing(&self, key: &str, fields: &Map<String, Value>) -> anyhow::Error {
        let known: Vec<String> = fields.keys().take(SHOWN).map(|name| start(name)).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        anyhow::anyhow!(
            "config key `{key}`: the observation has no `{}`{}",
            self.0,
            nestor_plugin::suggest(self.0.split('.').next().unwrap_or_default(), &known)
        )
    }
}

/// The index of a list that a part of a path means.
fn position(list: &[Value], part: &str) -> Option<usize> {
    match part.strip_prefix('-') {
        Some(back) => list.len().checked_sub(back.parse().ok()?),
        None => part.parse().ok(),
    }
}

/// The rule for a won episode.
#[derive(Debug, Clone)]
enum Rule {
    Path(Path),
    Reward(f64),
}

/// The paths of a config.
#[derive(Debug, Clone)]
pub struct View {
    text: Vec<Path>,
    /// An observation without any of the paths of `text` is an error.
    strict: bool,
    messages: Option<Path>,
    images: Vec<Path>,
    task: Option<Path>,
    admissible: Option<Path>,
    anchor: Vec<Path>,
    info: Vec<(String, Path)>,
    expert: Option<Path>,
    won: Rule,
}

/// An observation, and the expert's next action in its state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The observation. Its `action` is empty and `valid` is true.
    pub observation: Observation,
    /// SHA-256 of the images; empty without any.
    pub digest: String,
    /// The expert's next action, where the server names one.
    pub expert: Option<String>,
}

impl Seen {
    /// True if a policy could not tell the two apart. Recorded values may differ: some servers put times there.
    pub fn equals(&self, other: &Self) -> bool {
        let (a, b) = (&self.observation, &other.observation);
        (&a.text, &a.messages, &a.task, &a.admissible, &a.anchor)
            == (&b.text, &b.messages, &b.task, &b.admissible, &b.anchor)
            && (a.reward, a.terminated, &self.digest) == (b.reward, b.terminated, &other.digest)
    }
}

impl View {
    /// Parses the paths of a config.
    pub fn new(config: &Config) -> Result<Self> {
        let one = |key: &str, path: &Option<String>| path.as_ref().map(|path| Path::parse(key, path)).transpose();
        let many = |key: &str, paths: &Option<Paths>| {
            let list = paths.as_ref().map_or(&[][..], Paths::list);
            ensure!(paths.is_none() || !list.is_empty(), "config key `{key}` is an empty list; leave it out");
            list.iter().map(|path| Path::parse(key, path)).collect::<Result<Vec<_>>>()
        };
        let info = config.info.iter().map(|(name, path)| {
            ensure!(name != "won", "config key `info` sets `won`; use config key `won`");
            Ok((name.clone(), Path::parse("info", path)?))
        });
        let mut text = many("text", &config.text)?;
        if config.text.is_none() && config.tool.is_some() {
            text = ["result.content.0.text", "error.message"].map(|path| Path(path.into())).into();
        }
        Ok(Self {
            text,
            strict: config.text.is_some(),
            messages: one("messages", &config.messages)?,
            images: many("images", &config.images)?,
            task: one("task", &config.task)?,
            admissible: one("admissible", &config.admissible)?,
            anchor: many("anchor", &config.anchor)?,
            info: info.collect::<Result<_>>()?,
            expert: one("expert", &config.expert)?,
            won: match one("won.path", &config.won.path)? {
                Some(path) => Rule::Path(path),
                None => Rule::Reward(config.won.reward_at_least.unwrap_or(1.0)),
            },
        })
    }

    /// True if the config names a path to the expert's next action.
    pub fn has_expert(&self) -> bool {
        self.expert.is_some()
    }

    /// Reads the answer to a reset.
    pub fn first(&self, answer: &Answer) -> Result<Seen> {
        let fields = &answer.observation;
        let images = self.images.iter().map(|path| ("images", path));
        let others = [("task", &self.task), ("admissible", &self.admissible)];
        for (key, path) in others.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?))).chain(images) {
            path.find(fields).ok_or_else(|| path.missing(key, fields))?;
        }
        let mut seen = self.next(answer)?;
        // The reward of a reset has no step to count for.
        seen.observation.reward = 0.0;
        Ok(seen)
    }

    /// Reads the answer to a step. Values other than text and anchor may be missing.
    pub fn next(&self, answer: &Answer) -> Result<Seen> {
        let fields = &answer.observation;
        let (messages, images) = (self.chat(answer)?, self.images(fields)?);
        let text = match messages.last() {
            Some(last) => last.content().to_string(),
            None => self.text(fields)?,
        };
        let whole = if messages.is_empty() { text.clone() } else { json!(messages).to_string() };
        let digest = digest(&images);
        let anchor = match self.lines(&self.anchor, fields) {
            Some(anchor) => anchor,
            None if self.anchor.is_empty() && images.is_empty() => whole,
            None if self.anchor.is_empty() => format!("{whole} {digest}"),
            None if answer.done => String::new(),
            None => return Err(self.anchor[0].missing("anchor", fields)),
        };
        let found = |path: &Option<Path>| path.as_ref().and_then(|path| path.find(fields)).filter(|v| !v.is_null());
        let mut info: Map<String, Value> =
            self.info.iter().filter_map(|(name, path)| Some((name.clone(), path.find(fields)?.clone()))).collect();
        info.insert("won".into(), self.won(answer)?.into());
        let observation = Observation {
            text,
            messages,
            images,
            task: found(&self.task).map(shown).unwrap_or_default(),
            admissible: found(&self.admissible).map(actions).transpose()?.unwrap_or_default(),
            anchor: anchor.into_bytes(),
            reward: answer.reward,
            terminated: answer.done,
            valid: true,
            info,
            ..Observation::default()
        };
        Ok(Seen { observation, digest, expert: found(&self.expert).map(shown) })
    }

    /// The messages of an observation that is to be answered; none without a path to them.
    fn chat(&self, answer: &Answer) -> Result<Vec<Message>> {
        let Some(path) = self.messages.as_ref().filter(|_| !answer.done) else { return Ok(Vec::new()) };
        let found = path.find(&answer.observation).ok_or_else(|| path.missing("messages", &answer.observation))?;
        Message::chat(found).with_context(|| format!("config key `messages`: `{}`", path.0))
    }

    fn text(&self, fields: &Map<String, Value>) -> Result<String> {
        match self.lines(&self.text, fields) {
            Some(text) => Ok(text),
            None if self.strict => Err(self.text[0].missing("text", fields)),
            None if self.images.is_empty() => Ok(default_text(fields)),
            None => Ok(default_text_beside(&self.images, fields)),
        }
    }

    /// The images of all paths.
    fn images(&self, fields: &Map<String, Value>) -> Result<Vec<Image>> {
        let mut pictures = Pictures::default();
        for path in &self.images {
            let value = path.find(fields).unwrap_or(&Value::Null);
            pictures.add(value).with_context(|| format!("config key `images`: `{}`", path.0))?;
        }
        Ok(pictures.all)
    }

    /// The values of paths, one per line; none where all are missing.
    fn lines(&self, paths: &[Path], fields: &Map<String, Value>) -> Option<String> {
        let found: Vec<&Value> = paths.iter().filter_map(|path| path.find(fields)).collect();
        let lines: Vec<String> = found.iter().filter(|value| !value.is_null()).map(|value| shown(value)).collect();
        (!found.is_empty()).then(|| lines.join("\n"))
    }

    fn won(&self, answer: &Answer) -> Result<bool> {
        match &self.won {
            Rule::Reward(least) => Ok(answer.done && answer.reward >= *least),
            Rule::Path(path) => match path.find(&answer.observation) {
                None if answer.done => Err(path.missing("won.path", &answer.observation)),
                None | Some(Value::Null) => Ok(false),
                Some(Value::Bool(won)) => Ok(*won),
                Some(Value::Number(number)) => Ok(number.as_f64().is_some_and(|number| number > 0.0)),
                Some(other) => bail!(
                    "config key `won.path`: `{}` is {}, neither true, false nor a number",
                    path.0,
                    start(&other.to_string())
                ),
            },
        }
    }
}

/// The text of an observation whose config names none.
fn default_text(fields: &Map<String, Value>) -> String {
    if let Some(Value::String(text)) = fields.get("text") {
        return text.clone();
    }
    let mut texts = fields.values().filter_map(Value::as_str);
    match (texts.next(), texts.next()) {
        (Some(text), None) => text.to_string(),
        _ => Value::Object(fields.clone()).to_string(),
    }
}

/// The same where images are left out, and all that is empty; the empty text if nothing else is there.
fn default_text_beside(images: &[Path], fields: &Map<String, Value>) -> String {
    let is_image = |name: &str| images.iter().any(|path| path.0 == name);
    let others = fields.iter().filter(|(name, _)| !is_image(name));
    let mut rest: Map<String, Value> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    images.iter().for_each(|path| path.remove(&mut rest));
    rest.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    });
    if rest.is_empty() { String::new() } else { default_text(&rest) }
}

/// SHA-256 of images; empty without any.
fn digest(images: &[Image]) -> String {
    if images.is_empty() {
        return String::new();
    }
    let mut hasher = Sha256::new();
    for image in images {
        hasher.update(image.width().to_le_bytes());
        hasher.update(image.height().to_le_bytes());
        hasher.update(image.rgb());
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A value as text: a text as it is, anything else as JSON.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The admissible actions in a value.
fn actions(value: &Value) -> Result<Vec<String>> {
    let list = value
        .as_array()
        .with_context(|| format!("config key `admissible`: the value is {}, not a list", start(&value.to_string())))?;
    Ok(list.iter().map(shown).collect())
}
