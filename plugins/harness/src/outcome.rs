//! Observations made of requests, and of the ends of episodes.

use nestor_chat::{Request, StepNote};
use nestor_plugin::{Message, Observation, Response};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The note in a line of output that ends an episode; none of any other line.
///
/// # Errors
/// For an object with `reward` or `won` whose keys are wrong.
pub fn of_line(line: &str) -> Result<Option<StepNote>, String> {
    if !line.starts_with('{') {
        return Ok(None);
    }
    let Ok(object) = serde_json::from_str::<Map<String, Value>>(line) else { return Ok(None) };
    if !["reward", "won"].iter().any(|key| object.contains_key(*key)) {
        return Ok(None);
    }
    StepNote::read(&object).map(Some).map_err(|refusal| refusal.message.replace("nestor.", ""))
}

/// The observation of a request. `before` is the response that its note speaks of.
pub fn of_request(request: &Request, before: Option<&Response>) -> Observation {
    let note = &request.note;
    Observation {
        text: request.messages.last().map(|last| last.content().to_string()).unwrap_or_default(),
        anchor: anchor(request),
        messages: request.messages.clone(),
        conversation: true,
        tools: request.tools.clone(),
        ..noted(note, before)
    }
}

/// The observation after the last step.
pub fn of_end(note: &StepNote, before: Option<&Response>) -> Observation {
    let mut seen = noted(note, before);
    seen.info.entry("won").or_insert_with(|| (note.reward.unwrap_or(0.0) > 0.0).into());
    Observation {
        anchor: note.anchor.clone().map(String::into_bytes).unwrap_or_default(),
        terminated: !note.truncated,
        truncated: note.truncated,
        ..seen
    }
}

/// The part that both have: what a note says of the step before.
fn noted(note: &StepNote, before: Option<&Response>) -> Observation {
    let action = before.map(said).unwrap_or_default();
    Observation {
        action: note.action.clone().unwrap_or(action),
        reward: before.map_or(0.0, |_| note.reward.unwrap_or(0.0)),
        valid: note.valid.unwrap_or(before.is_none_or(|response| !response.broken_call)),
        info: note.info.clone(),
        metrics: note.metrics.clone(),
        ..Observation::default()
    }
}

/// The action in a response that no note names: its calls, or else its text.
fn said(response: &Response) -> String {
    let call = |call: &Value| {
        format!(
            "{}({})",
            call["function"]["name"].as_str().unwrap_or_default(),
            call["function"]["arguments"].as_str().unwrap_or_default()
        )
    };
    match response.message.keys.get("tool_calls").and_then(Value::as_array) {
        Some(calls) => calls.iter().map(call).collect::<Vec<_>>().join("; "),
        None => response.message.content().to_string(),
    }
}

/// The key of the state that a request is made in: what the request names, or else a digest of the last results of tools, or else of the
/// conversation.
fn anchor(request: &Request) -> Vec<u8> {
    if let Some(anchor) = &request.note.anchor {
        return anchor.clone().into_bytes();
    }
    let results: Vec<&Message> = request.messages.iter().rev().take_while(|message| message.role == "tool").collect();
    let of = match results.is_empty() {
        true => json!([request.messages, request.tools]),
        false => results.iter().rev().map(|result| Value::from(result.content())).collect(),
    };
    let hex = |byte: &u8| format!("{byte:02x}");
    Sha256::digest(of.to_string().as_bytes())[..16].iter().map(hex).collect::<String>().into_bytes()
}

/// A digest of all that the policy sees of a request.
pub fn digest(request: &Request) -> [u8; 32] {
    Sha256::digest(json!([request.messages, request.tools]).to_string().as_bytes()).into()
}
