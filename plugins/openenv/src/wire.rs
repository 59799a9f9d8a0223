//! The messages of OpenEnv's WebSocket. Nothing here does input or output.

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value, json};

/// The message that ends a session; the server closes the connection and does not answer.
pub const CLOSE: &str = r#"{"type":"close"}"#;

/// Returns the message that starts an episode.
pub fn reset(fields: Map<String, Value>) -> String {
    json!({ "type": "reset", "data": fields }).to_string()
}

/// Returns the message that plays an action.
pub fn step(action: Map<String, Value>) -> String {
    json!({ "type": "step", "data": action }).to_string()
}

/// An answer of the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To a reset or a step.
    Observation(Answer),
    /// The server refused a message or failed.
    Refusal(Refusal),
}

/// The observation after a reset or a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The fields of the observation.
    pub observation: Map<String, Value>,
    /// The reward; 0 where the server gives none.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
}

/// An error of the server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Refusal {
    /// The code, such as `EXECUTION_ERROR`.
    pub code: String,
    /// The server's own words.
    pub message: String,
    /// The fields that failed the validation, each as a dotted place and the reason.
    pub fields: Vec<(String, String)>,
}

/// Parses a message of the server.
pub fn read(message: &str) -> Result<Reply> {
    let value: Value =
        serde_json::from_str(message).with_context(|| format!("the server sent no JSON: {}", start(message)))?;
    let Value::Object(mut envelope) = value else { bail!("the server sent no JSON object: {}", start(message)) };
    let kind = envelope.remove("type").unwrap_or_default();
    let Some(Value::Object(data)) = envelope.remove("data") else {
        bail!("the server's message has no object `data`: {}", start(message));
    };
    match kind.as_str() {
        Some("observation") => answer(data).map(Reply::Observation),
        Some("error") => Ok(Reply::Refusal(refusal(&data))),
        _ => bail!("the server sent a message of type {}, not an observation", start(&kind.to_string())),
    }
}

fn answer(mut data: Map<String, Value>) -> Result<Answer> {
    let Some(Value::Object(observation)) = data.remove("observation") else {
        bail!("the server's answer has no object `observation`");
    };
    let reward = match data.remove("reward") {
        None | Some(Value::Null) => 0.0,
        Some(Value::Bool(yes)) => f64::from(u8::from(yes)),
        Some(Value::Number(number)) => number.as_f64().unwrap_or(f64::NAN),
        Some(other) => bail!("the server's reward is {}, not a number", start(&other.to_string())),
    };
    ensure!(reward.is_finite(), "the server's reward is {reward}, which is not finite");
    let done = match data.remove("done") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(done)) => done,
        Some(other) => bail!("the server's `done` is {}, not true or false", start(&other.to_string())),
    };
    Ok(Answer { observation, reward, done })
}

fn refusal(data: &Map<String, Value>) -> Refusal {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_string();
    let field = |error: &Value| {
        let place = error.get("loc").and_then(Value::as_array).into_iter().flatten();
        let place: Vec<String> =
            place.map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect();
        (place.join("."), text(error.get("msg")))
    };
    Refusal {
        code: text(data.get("code")),
        message: text(data.get("message")),
        fields: data.get("errors").and_then(Value::as_array).into_iter().flatten().map(field).collect(),
    }
}

impl Refusal {
    /// True if the server had no session to give, or ended the session: another connection may fare better.
    pub fn ends_session(&self) -> bool {
        matches!(self.code.as_str(), "CAPACITY_REACHED" | "SESSION_ERROR")
    }

    /// True if the action was refused for the value of this field alone.
    pub fn is_about(&self, field: &str) -> bool {
        let names = |place: &str| place.split('.').any(|part| part == field);
        let present = |reason: &str| reason != "Field required" && !reason.starts_with("Extra inputs");
        self.code == "VALIDATION_ERROR"
            && !self.fields.is_empty()
            && self.fields.iter().all(|(place, reason)| names(place) && present(reason))
    }

    /// Returns the error for the user: the fault, its place, and the remedy.
    pub fn error(&self) -> anyhow::Error {
        let (code, message) = (start(&self.code), &self.message);
        let said = if message.is_empty() { code.clone() } else { format!("{code}: {}", start(message)) };
        let fields: Vec<String> = self
            .fields
            .iter()
            .take(8)
            .map(|(place, reason)| format!("`{}`: {}", start(place), start(reason)))
            .collect();
        match code.as_str() {
            "INVALID_JSON" | "UNKNOWN_TYPE" => anyhow!(
                "the server does not understand this client ({said}): it speaks another version of OpenEnv's protocol; \
                 serve the environment with openenv 0.3 to 0.10"
            ),
            "VALIDATION_ERROR" => anyhow!(
                "the server refused the fields of the message ({said}: {}): set config keys `action`, `tool`, `action_extra`, \
                 `reset` and `reset_kwargs` to what its address /schema shows",
                fields.join(", ")
            ),
            "EXECUTION_ERROR" => anyhow!(
                "the environment failed inside the server ({said}): the server's log has the place; \
                 rollout.env_errors lets a run survive some failures"
            ),
            "CAPACITY_REACHED" => anyhow!(
                "the server has no free session ({said}): raise its max_concurrent_envs, or lower rollout.slots"
            ),
            "FACTORY_ERROR" => {
                anyhow!("the server cannot make its environment ({said}): the server's log has the cause")
            }
            "SESSION_ERROR" => anyhow!("the server ended the session ({said}): the server's log has the cause"),
            "" => anyhow!(
                "the server sent an error without a code ({}): the server's log may have the cause",
                start(message)
            ),
            _ => anyhow!("the server sent an error that this client does not know ({said})"),
        }
    }
}

/// The start of a text, for a message.
pub fn start(text: &str) -> String {
    let mut short: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
