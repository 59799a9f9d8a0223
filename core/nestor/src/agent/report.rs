//! Reports of episodes: success rates, and the lines of `rollouts/` and `evaluations/` in the run directory.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::data::{Batch, Episode, KeyedImage, Message, Step};
use crate::files::write_whole;
use crate::plugin::Parts;
use crate::tokenizer::Tokenizer;

/// The folder of a run directory that holds the images of its episodes.
const IMAGES: &str = "images";
/// The token of a part of an image, as a prompt's text has it.
const IMAGE_TOKEN: &str = "<|image_pad|>";

/// Episodes won and played.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub won: usize,
    pub played: usize,
}

impl Count {
    /// Share of episodes won; 0 of none.
    pub fn rate(&self) -> f64 {
        self.won as f64 / self.played.max(1) as f64
    }

    fn add(&mut self, won: bool) {
        self.won += usize::from(won);
        self.played += 1;
    }
}

/// Success over all episodes and by kind of task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Success {
    pub all: Count,
    /// By environment, where the recipe lists them, and by the environment's name for the kind of task, where it has kinds.
    pub by_type: BTreeMap<String, Count>,
}

impl Success {
    /// Counts episodes.
    pub fn of(episodes: &[Episode]) -> Self {
        let mut success = Self::default();
        success.add(episodes);
        success
    }

    /// Failed episodes do not count.
    pub fn add(&mut self, episodes: &[Episode]) {
        for episode in episodes.iter().filter(|episode| !episode.failed()) {
            self.all.add(episode.won);
            for kind in episode.kinds() {
                self.by_type.entry(kind).or_default().add(episode.won);
            }
        }
    }
}

/// The episodes of an iteration with their advantages.
#[derive(Clone, Copy)]
pub struct Scored<'a> {
    pub episodes: &'a [Episode],
    /// The scored batch that `pack` made of these very episodes.
    pub batch: &'a Batch,
    /// The batch of the failed episodes; empty where the update leaves them out.
    pub failed: &'a Batch,
    /// The components of its advantages.
    pub parts: &'a Parts,
    pub tokenizer: &'a Tokenizer,
}

impl Scored<'_> {
    /// One JSON object per episode: its steps with prompt and response as text and by token, its reward and advantage (mean
    /// over its tokens).
    pub fn lines(&self) -> impl Iterator<Item = Value> {
        let (mut rows, mut failed_rows) = (0.., 0..self.failed.rows.len());
        self.episodes.iter().map(move |episode| {
            let mut line = line(episode, Some(self.tokenizer));
            let steps = line["steps"].as_array_mut().into_iter().flatten();
            if episode.failed() {
                for (step, row) in steps.zip(&mut failed_rows) {
                    step["advantage"] = self.failed.rows.advantage(row).into();
                }
                return line;
            }
            for (step, row) in steps.zip(&mut rows) {
                let parts = self.parts.of(row).filter(|(_, v)| v.is_finite()).map(|(name, v)| (name.into(), v.into()));
                step["advantage"] = self.batch.rows.advantage(row).into();
                step["parts"] = parts.collect::<Map<_, _>>().into();
            }
            line
        })
    }
}

/// One JSON object per episode of an evaluation, as [`Scored::lines`] but without advantages, and with the number of the
/// sample among those of its task.
pub fn evaluation_lines(episodes: &[Episode], tokenizer: &Tokenizer) -> impl Iterator<Item = Value> {
    episodes.chunk_by(|a, b| a.group == b.group).flat_map(move |samples| {
        samples.iter().enumerate().map(move |(sample, episode)| {
            let mut line = line(episode, Some(tokenizer));
            line["sample"] = sample.into();
            line
        })
    })
}

/// As [`evaluation_lines`], for a model that another program serves: without tokens, and with the messages of each step's request
/// (`asked`, by episode) as its prompt.
pub fn endpoint_lines(episodes: &[Episode], asked: &[Vec<Vec<Message>>]) -> Vec<Value> {
    let mut lines: Vec<Value> = episodes.iter().map(|episode| line(episode, None)).collect();
    let samples = episodes.chunk_by(|a, b| a.group == b.group).flat_map(|samples| 0..samples.len());
    for ((line, sample), asked) in lines.iter_mut().zip(samples).zip(asked) {
        line["sample"] = sample.into();
        for (step, messages) in line["steps"].as_array_mut().into_iter().flatten().zip(asked) {
            let text = |message: &Message| format!("[{}]\n{}", message.role, message.content());
            step["prompt"] = messages.iter().map(text).collect::<Vec<_>>().join("\n").into();
            if let Some(step) = step.as_object_mut() {
                step.retain(|key, _| key != "tokens" && key != "logprobs");
            }
        }
    }
    lines
}

fn line(episode: &Episode, tokenizer: Option<&Tokenizer>) -> Value {
    let mut steps: Vec<Value> = episode.steps.iter().map(|step| step_object(episode, step, tokenizer)).collect();
    if let Some(step) = episode.failed_step().and_then(|failed| steps.get_mut(failed)) {
        // The environment said nothing of it.
        (step["reward"], step["valid"]) = (Value::Null, Value::Null);
    }
    let mut line = json!({
        "group": episode.group,
        "episode": episode.episode,
        "task": episode.environment.as_ref().map_or(episode.task, |environment| environment.task),
        "seed": episode.seed,
        "won": episode.won,
        "task_type": episode.task_type,
        "return": (!episode.failed()).then(|| episode.episode_return()),
        "failure": episode.failure,
        "steps": steps,
    });
    if let Some(environment) = &episode.environment {
        line["environment"] = environment.name.as_str().into();
    }
    line
}

/// An anchor as text: its own, or where it is none, such as the key of a picture, its bytes in hexadecimal digits.
pub(super) fn anchor_text(anchor: &[u8]) -> String {
    match std::str::from_utf8(anchor) {
        Ok(text) => text.to_string(),
        Err(_) => anchor.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn step_object(episode: &Episode, step: &Step, tokenizer: Option<&Tokenizer>) -> Value {
    let prompt = tokenizer.map_or_else(String::new, |tokenizer| tokenizer.decode(&step.prompt, false));
    let mut object = json!({
        "prompt": if step.prompt_images.is_empty() { prompt } else { with_single_placeholders(&prompt) },
        "response": step.response_text,
        "action": step.action,
        "admissible": step.admissible,
        "reward": step.reward,
        "valid": step.valid,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "anchor": anchor_text(&step.anchor),
        "response_tokens": step.response.len(),
        "tokens": tokenizer.map_or_else(Vec::new, |tokenizer| tokenizer.pieces(&step.response)),
        "logprobs": step.logprobs.iter().map(|&l| (f64::from(l) * 1e4).round() / 1e4).collect::<Vec<_>>(),
        "info": step.info,
    });
    if let Some(before) = step.continues {
        object["continues"] = before.into();
    }
    if !step.messages.is_empty() {
        object["messages"] = json!(step.messages);
    }
    if !step.images.is_empty() {
        let path = |image| format!("{IMAGES}/{}", file_name(image));
        object["images"] = episode.shown(&step.images).map(path).collect();
    }
    object
}

/// Shortens the tokens of each image to the one placeholder that the prompt's template has.
pub(super) fn with_single_placeholders(prompt: &str) -> String {
    let mut text = String::with_capacity(prompt.len());
    let mut pieces = prompt.split(IMAGE_TOKEN).peekable();
    text += pieces.next().unwrap_or_default();
    while let Some(piece) = pieces.next() {
        if !piece.is_empty() || pieces.peek().is_none() {
            text += IMAGE_TOKEN;
            text += piece;
        }
    }
    text
}

/// The name of an image's file.
fn file_name(image: &KeyedImage) -> String {
    format!("{}.png", image.key().hex())
}

/// Writes the images that the lines of these episodes name, as PNG files in a folder of `dir`. An image has one file, also
/// where many steps show it.
pub fn write_images(dir: &Path, episodes: &[Episode]) -> Result<()> {
    let shown = episodes.iter().flat_map(|episode| episode.steps.iter().flat_map(|step| episode.shown(&step.images)));
    let (mut done, folder) = (HashSet::new(), dir.join(IMAGES));
    for image in shown.filter(|image| done.insert(image.key())) {
        write_image(&folder, image)?;
    }
    Ok(())
}

/// Writes an image as a PNG file, atomically, in a folder that is made if it is missing. A file that exists is not written
/// again: its name is the key of its content. Returns its path.
pub fn write_image(folder: &Path, image: &KeyedImage) -> Result<PathBuf> {
    let path = folder.join(file_name(image));
    if !path.exists() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        write_whole(&path, image.png()?)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use nestor_plugin::Image;

    use super::*;

    fn picture(shade: u8) -> KeyedImage {
        Image::new(2, 1, vec![shade; 6]).expect("6 bytes").into()
    }

    #[test]
    fn a_run_directory_has_one_file_for_each_image_that_a_step_shows() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let step = |images: &[u32]| Step { images: images.to_vec(), ..Step::default() };
        // The third image was seen after the last step.
        let images = vec![picture(1), picture(2), picture(3)];
        let first = Episode { steps: vec![step(&[0]), step(&[1, 0])], images, ..Episode::default() };
        let second = Episode { steps: vec![step(&[0])], images: vec![picture(2)], ..Episode::default() };
        write_images(dir.path(), &[first.clone(), second])?;

        let [one, two] = [picture(1), picture(2)].map(|image| format!("images/{}.png", image.key().hex()));
        assert_eq!(std::fs::read_dir(dir.path().join("images"))?.count(), 2);
        assert!(dir.path().join(&one).exists());
        assert_eq!(std::fs::read(dir.path().join(&two))?, picture(2).png()?);

        let tokenizer = Tokenizer::train(["a b".to_string()].into_iter(), 300, false)?;
        let lines: Vec<Value> = evaluation_lines(std::slice::from_ref(&first), &tokenizer).collect();
        assert_eq!(lines[0]["steps"][1]["images"], json!([two, one]));
        let blind = Episode { steps: vec![step(&[])], ..Episode::default() };
        let lines: Vec<Value> = evaluation_lines(&[blind], &tokenizer).collect();
        assert!(!lines[0]["steps"][0].as_object().context("a step")?.contains_key("images"));

        // A file that exists stays as it is.
        std::fs::write(dir.path().join(&two), "mine")?;
        write_images(dir.path(), &[first])?;
        assert_eq!(std::fs::read(dir.path().join(&two))?, b"mine");
        Ok(())
    }

    #[test]
    fn an_image_in_a_prompt_is_one_placeholder() {
        let [start, pad, end] = ["<|vision_start|>", IMAGE_TOKEN, "<|vision_end|>"];
        for count in [1, 2, 7] {
            let image = format!("{start}{}{end}", pad.repeat(count));
            let wanted = format!("a {start}{pad}{end}{start}{pad}{end} b");
            assert_eq!(with_single_placeholders(&format!("a {image}{image} b")), wanted);
        }
        // Cut inside of an image.
        assert_eq!(with_single_placeholders(&format!("{pad}{pad} a {pad}{pad}")), format!("{pad} a {pad}"));
        assert_eq!(with_single_placeholders("a"), "a");
    }

    #[test]
    fn anchors_that_are_no_text_are_shown_as_digits() {
        assert_eq!(anchor_text("état".as_bytes()), "état");
        assert_eq!(anchor_text(&[0x7b, 0xff, 0x01]), "7bff01");
    }

    #[test]
    fn success_is_counted_by_kind() {
        let episode =
            |won, kind: Option<&str>| Episode { won, task_type: kind.map(str::to_string), ..Episode::default() };
        let success = Success::of(&[episode(true, Some("a")), episode(false, Some("a")), episode(true, None)]);
        assert_eq!(success.all, Count { won: 2, played: 3 });
        assert_eq!(success.by_type["a"].rate(), 0.5);
        assert_eq!(Count::default().rate(), 0.0);
    }
}
