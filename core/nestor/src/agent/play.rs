//! `nestor play`: plays an environment by hand or from a file, without a model.

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_args::PlayArgs;
use nestor_plugin::Image;
use nestor_plugin::files::{self, SMALL};
use nestor_recipe::read_config;
use serde_json::{Value, json};

use super::episode_state::won;
use super::prompt::markers;
use super::report::anchor_text;
use super::report::write_image;
use crate::input_error;
use crate::plugin::{Observation, Plugins, PromptTemplate, PromptVariables, SharedEnv};
use crate::recipe::PluginChoice;
use crate::terminal;

/// Plays one episode until it ends or there are no more responses.
pub fn play(plugins: &Plugins, args: &PlayArgs, out: &mut impl Write) -> Result<()> {
    let config = args.config.as_deref().map_or(Ok(json!({})), read_config)?;
    let shared_env = plugins.environment(&PluginChoice::new(&args.plugin, config))?;
    for warning in plugins.shadow_warnings([shared_env.file()])? {
        terminal::warn(&format!("warning: {warning}"));
    }
    let tasks = shared_env.tasks(&args.split)?;
    if args.task >= tasks {
        return Err(input_error!("--task {}: split {} has {tasks} tasks, counted from 0", args.task, args.split));
    }
    let mut env = shared_env.spawn()?;
    let folder = args.images.as_deref();
    let mut screen = Screen { out, json: args.json, folder, steps: 0, episode_return: 0.0 };
    let first = env.reset(&args.split, args.task, args.seed)?;
    screen.show(&first)?;
    // No prompt is shown, but a run could not begin.
    if let Err(error) = try_template(&shared_env, &first) {
        terminal::warn(&format!("warning: {error:#}"));
    }

    let mut responses: Box<dyn Iterator<Item = Result<String>>> = match &args.actions {
        Some(path) => Box::new(read_responses(path)?.into_iter().map(Ok)),
        None => Box::new(std::io::stdin().lock().lines().map(|line| line.context("cannot read standard input"))),
    };
    let asks = args.actions.is_none() && std::io::stdin().is_terminal() && !args.json;
    let mut over = first.terminated || first.truncated;
    while !over {
        if asks {
            screen.ask()?;
        }
        let Some(response) = responses.next().transpose()? else { return Ok(()) };
        let seen = env.step(&response)?;
        screen.show(&seen)?;
        over = seen.terminated || seen.truncated;
    }
    // Only a file is read further: a terminal would have to be waited for.
    let unplayed = if args.actions.is_some() { responses.count() } else { 0 };
    if unplayed > 0 {
        eprintln!("the episode is over; {unplayed} more responses were not played");
    }
    Ok(())
}

/// Renders the environment's own prompt of the first step.
fn try_template(shared_env: &SharedEnv, first: &Observation) -> Result<()> {
    let images: Vec<u32> = (0..first.images.len() as u32).collect();
    let variables = PromptVariables {
        observation: &first.text,
        image: markers(&images),
        task: &first.task,
        admissible: &first.admissible,
        history: Vec::new(),
        step: 1,
        steps_taken: 0,
        chat: !first.messages.is_empty(),
        follow_up: false,
    };
    PromptTemplate::of(shared_env)?.render(&variables).map(drop)
}

/// The responses of an actions file. A line that begins with a quotation mark is a JSON string, any other is the response
/// itself; empty lines are skipped.
fn read_responses(path: &Path) -> Result<Vec<String>> {
    let line_name = |number: usize| format!("--actions {}, line {}", path.display(), number + 1);
    let text = files::read_to_string(path, SMALL).map_err(|e| input_error!("--actions {}: {e}", path.display()))?;
    let mut responses = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        responses.push(if line.trim_start().starts_with('"') {
            serde_json::from_str(line).map_err(|e| {
                input_error!("{}: {e}; write each response as one JSON string, such as \"up\"", line_name(number))
            })?
        } else {
            line.to_owned()
        });
    }
    Ok(responses)
}

/// Prints the episode.
struct Screen<'a, W> {
    out: &'a mut W,
    json: bool,
    /// The folder for images.
    folder: Option<&'a Path>,
    steps: u64,
    episode_return: f64,
}

impl<W: Write> Screen<'_, W> {
    fn show(&mut self, seen: &Observation) -> Result<()> {
        self.episode_return += seen.reward;
        let files = self.write_images(seen)?;
        let text = if self.json { format!("{}\n", self.object(seen, &files)) } else { self.view(seen, &files) };
        self.steps += 1;
        // Another program may be waiting for this step before it sends the next response.
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).context("cannot write the episode")
    }

    fn ask(&mut self) -> Result<()> {
        self.out.write_all(b"> ").and_then(|()| self.out.flush()).context("cannot write the episode")
    }

    /// Writes the images, where there is a folder for them.
    fn write_images(&self, seen: &Observation) -> Result<Vec<PathBuf>> {
        let Some(folder) = self.folder else { return Ok(Vec::new()) };
        let write = |image: &Image| {
            write_image(folder, &image.clone().into()).map_err(|error| input_error!("--images: {error:#}"))
        };
        seen.images.iter().map(write).collect()
    }

    /// A step for programs.
    fn object(&self, seen: &Observation, files: &[PathBuf]) -> Value {
        let mut object = json!({
            "step": self.steps,
            "observation": seen.text,
            "task": seen.task,
            "admissible": seen.admissible,
            "anchor": anchor_text(&seen.anchor),
            "action": seen.action,
            "reward": seen.reward,
            "done": seen.terminated || seen.truncated,
            "terminated": seen.terminated,
            "truncated": seen.truncated,
            "valid": seen.valid,
            "won": won(seen),
            "info": seen.info,
        });
        if !seen.messages.is_empty() {
            object["messages"] = json!(seen.messages);
        }
        if !files.is_empty() {
            object["images"] = files.iter().map(|file| file.display().to_string()).collect();
        }
        object
    }

    /// A step for people.
    fn view(&self, seen: &Observation, files: &[PathBuf]) -> String {
        let mut text = String::new();
        if self.steps > 0 {
            let note = if seen.valid { "" } else { ", not valid" };
            let _ = writeln!(
                text,
                "step {}: action {:?}{note}, reward {:.4}, return {:.4}\n",
                self.steps, seen.action, seen.reward, self.episode_return
            );
        } else if !seen.task.is_empty() {
            let _ = writeln!(text, "task: {}\n", seen.task);
        }
        for message in &seen.messages {
            let _ = writeln!(text, "{}: {}\n", message.role, message.content());
        }
        if seen.messages.is_empty() {
            let _ = writeln!(text, "{}\n", seen.text);
        }
        for (number, image) in seen.images.iter().enumerate() {
            let file = files.get(number).map_or("--images DIR writes it".into(), |file| file.display().to_string());
            let _ = writeln!(text, "image of {} x {} pixels: {file}\n", image.width(), image.height());
        }
        if seen.terminated || seen.truncated {
            let how = if seen.truncated { "cut at a limit" } else { "over" };
            let _ = writeln!(text, "the episode is {how}: {}", if won(seen) { "won" } else { "not won" });
        } else if !seen.admissible.is_empty() {
            let _ = writeln!(text, "actions: {}", seen.admissible.join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use nestor_images::read_image;
    use serde_json::Map;

    use super::*;

    /// Shows one observation with two images of different sizes; returns the output.
    fn shown(folder: Option<&Path>, json: bool) -> Result<String> {
        let images = [3, 5].map(|side| Image::new(side, 2, vec![side as u8; 6 * side as usize]));
        let images = images.into_iter().collect::<Result<_>>()?;
        let seen = Observation { text: "a board".into(), images, ..Observation::default() };
        let mut out = Vec::new();
        Screen { out: &mut out, json, folder, steps: 0, episode_return: 0.0 }.show(&seen)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn images_are_written_where_a_folder_is_given() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let folder = dir.path().join("seen");
        let object: Value = serde_json::from_str(&shown(Some(&folder), true)?)?;
        let files: Vec<&str> = object["images"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let sizes: Vec<_> = files
            .iter()
            .map(|file| read_image(Path::new(file)).map(|read| read.image().width()))
            .collect::<Result<_>>()?;
        assert_eq!(sizes, [3, 5]);
        let view = shown(Some(&folder), false)?;
        assert!(files.iter().all(|file| view.contains(file)) && view.contains("image of 5 x 2 pixels: "), "{view}");

        assert!(serde_json::from_str::<Map<String, Value>>(&shown(None, true)?)?.get("images").is_none());
        assert!(shown(None, false)?.contains("image of 3 x 2 pixels: --images DIR writes it"));
        std::fs::write(folder.with_extension("file"), "")?;
        let error = shown(Some(&folder.with_extension("file")), true).expect_err("a file in the folder's place");
        assert!(error.is::<crate::error::InputError>() && format!("{error:#}").starts_with("--images: "), "{error:#}");
        Ok(())
    }
}
