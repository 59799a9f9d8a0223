//! Checks of the result of a reset or a step against the rules of nestor_plugin.h.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Message, Observation, ffi};
use serde_json::{Map, Value};

use crate::call::Texts;

/// Longest `task_type` in bytes. It becomes part of a metric's name.
const LONGEST_TASK_TYPE: usize = 128;
/// Longest name of a plugin's metric in bytes.
const LONGEST_METRIC: usize = 64;

/// The observation after a reset.
pub fn of_reset(texts: Texts, out: ffi::Step) -> Result<Observation> {
    let seen = of_step(texts, out)?;
    ensure!(
        !seen.terminated && !seen.truncated,
        "the episode is over at reset; a task must leave at least one step to play"
    );
    Ok(seen)
}

/// The observation after a step.
pub fn of_step(mut texts: Texts, out: ffi::Step) -> Result<Observation> {
    if !out.reward.is_finite() {
        bail!("the plugin gave the reward {}, which is not finite", out.reward);
    }
    // Advantages are float32.
    ensure!(
        out.reward.abs() <= f64::from(f32::MAX),
        "the plugin gave the reward {:e}, which float32 cannot hold",
        out.reward
    );
    let flags = [("terminated", out.terminated), ("truncated", out.truncated), ("valid", out.valid)];
    if let Some((name, flag)) = flags.iter().find(|(_, flag)| *flag > 1) {
        bail!("the plugin gave the flag `{name}` the value {flag}; a flag is 0 or 1");
    }
    let over = out.terminated + out.truncated > 0;
    ensure!(
        out.terminated + out.truncated < 2,
        "the plugin set both `terminated` and `truncated`; an episode ends in one of the two ways"
    );
    // After the last step there is no state in which another one is taken.
    ensure!(
        over || texts.has(ffi::ANCHOR),
        "the plugin did not put its anchor (NESTOR_ANCHOR), the key of the state that the next step is taken in"
    );
    let text = texts.required(ffi::OBSERVATION, "observation", "NESTOR_OBSERVATION")?;
    Ok(Observation {
        messages: messages(&texts.all(ffi::MESSAGE, "message")?, &text)?,
        text,
        conversation: texts.has(ffi::CONVERSATION),
        tools: tools(&texts.all(ffi::TOOL, "tool")?)?,
        images: texts.images(),
        task: texts.text(ffi::TASK, "task text")?,
        admissible: texts.all(ffi::ADMISSIBLE, "admissible action")?,
        anchor: texts.bytes(ffi::ANCHOR),
        action: texts.text(ffi::ACTION, "action")?,
        reward: out.reward,
        terminated: out.terminated == 1,
        truncated: out.truncated == 1,
        valid: out.valid == 1,
        info: info(&texts.text(ffi::INFO, "info")?)?,
        metrics: metrics(&mut texts)?,
    })
}

/// The messages of an observation whose text is `last`.
fn messages(texts: &[String], last: &str) -> Result<Vec<Message>> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let read = |text: &String| serde_json::from_str::<Value>(text).context("a message of the plugin is no JSON");
    let chat = Message::chat(&texts.iter().map(read).collect::<Result<Value>>()?).context("the plugin's messages")?;
    ensure!(
        chat.last().is_some_and(|message| message.content() == last),
        "the plugin's last message is not its observation: put the content of the last NESTOR_MESSAGE as NESTOR_OBSERVATION"
    );
    Ok(chat)
}

/// The tools that the policy may call.
fn tools(texts: &[String]) -> Result<Vec<Value>> {
    let read = |text: &String| {
        let tool: Value = serde_json::from_str(text).context("a tool of the plugin is no JSON")?;
        let name = tool.pointer("/function/name").and_then(Value::as_str);
        ensure!(
            name.is_some_and(|name| !name.is_empty()),
            "a tool of the plugin is {}; it must be {{\"type\": \"function\", \"function\": {{\"name\": …}}}}",
            shown(&tool)
        );
        Ok(tool)
    };
    texts.iter().map(read).collect()
}

/// The info's object, with the types that Nestor reads.
fn info(text: &str) -> Result<Map<String, Value>> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    let info: Map<String, Value> = serde_json::from_str(text).context("the plugin's info is not a JSON object")?;
    match info.get("won") {
        None | Some(Value::Null | Value::Bool(_) | Value::Number(_)) => {}
        Some(other) => bail!("the plugin's info has `won` = {}; it must be true or false", shown(other)),
    }
    match info.get("task_type") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) => {
            let fit = kind.len() <= LONGEST_TASK_TYPE && !kind.chars().any(|c| c.is_control() || c == '/');
            ensure!(
                fit,
                "the plugin's info has `task_type` = {}; it is part of a metric's name: at most {LONGEST_TASK_TYPE} bytes \
                 without slashes and control characters",
                shown(&info["task_type"])
            );
        }
        Some(other) => bail!("the plugin's info has `task_type` = {}; it must be a text", shown(other)),
    }
    Ok(info)
}

/// The numbers that a call put for metrics.jsonl.
pub fn metrics(texts: &mut Texts) -> Result<BTreeMap<String, f64>> {
    let text = texts.text(ffi::METRICS, "metrics")?;
    if text.is_empty() {
        return Ok(BTreeMap::new());
    }
    let metrics: BTreeMap<String, f64> =
        serde_json::from_str(&text).context("the plugin's metrics are not a JSON object of numbers")?;
    let fits = |name: &str| {
        (1..=LONGEST_METRIC).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    if let Some(name) = metrics.keys().find(|name| !fits(name)) {
        bail!(
            "the plugin's metrics have the name {name:?}; a name has at most {LONGEST_METRIC} lower case letters, digits \
             and underscores"
        );
    }
    Ok(metrics)
}

/// The start of a value as JSON.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}
