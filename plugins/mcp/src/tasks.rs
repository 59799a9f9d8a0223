//! The tasks of files of JSON Lines.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nestor_plugin::Message;
use nestor_plugin::files::{self, LARGE};
use serde_json::{Map, Value};

use crate::config::Config;

/// One task.
#[derive(Debug, Clone)]
pub struct Task {
    /// The line of the file, as tools of the server get it.
    pub line: Value,
    /// The conversation that an episode begins with.
    pub messages: Vec<Message>,
    /// The right answer, where the file has it.
    pub answer: Option<String>,
    /// The kind of task, for `success` by kind.
    pub task_type: Option<String>,
}

/// Reads the tasks of all splits.
///
/// # Errors
/// For a file that cannot be read, and for a line that is no task; they name the place.
pub fn read(config: &Config) -> Result<BTreeMap<String, Vec<Task>>> {
    let read = |(split, path): (&String, &std::path::PathBuf)| {
        let tasks = of_file(path, config).with_context(|| format!("config key `tasks.{split}`"))?;
        ensure!(!tasks.is_empty(), "config key `tasks.{split}`: {} has no line", path.display());
        Ok((split.clone(), tasks))
    };
    config.tasks.iter().map(read).collect()
}

fn of_file(path: &Path, config: &Config) -> Result<Vec<Task>> {
    let text = files::read_to_string(path, LARGE).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(number, line): (usize, &str)| {
        of_line(line, config).with_context(|| format!("{}, line {}", path.display(), number + 1))
    };
    lines.map(read).collect()
}

fn of_line(line: &str, config: &Config) -> Result<Task> {
    let object: Map<String, Value> = serde_json::from_str(line).context("it is no JSON object")?;
    let mut messages = match (object.get("prompt"), object.get("messages")) {
        (Some(Value::String(prompt)), None) => vec![Message::new("user", prompt.as_str())],
        (Some(other), None) => bail!("`prompt` is {other}; it must be a text"),
        (None, Some(messages)) => Message::chat(messages).context("`messages`")?,
        (Some(_), Some(_)) => bail!("it has both `prompt` and `messages`; remove one"),
        (None, None) => bail!("it has neither `prompt` (a text) nor `messages` (a chat)"),
    };
    if let Some(system) = config.system.as_ref().filter(|_| messages[0].role != "system") {
        messages.insert(0, Message::new("system", system.as_str()));
    }
    let answer = match object.get("answer") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(other) => bail!("`answer` is {other}; it must be a text or a number"),
    };
    if config.reward.answer.is_some() {
        let answer = answer.as_deref().context("it has no `answer`, which config key `reward.answer` compares with")?;
        config.reward.check_answer(answer)?;
    }
    let task_type = object.get("task_type").and_then(Value::as_str).map(str::to_string);
    Ok(Task { line: Value::Object(object), messages, answer, task_type })
}
