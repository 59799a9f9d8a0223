//! A request for a chat completion.

use std::collections::BTreeMap;

use nestor_plugin::Message;
use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// Most messages, and tools, of a request.
const MOST: usize = 4096;
/// Keys that change nothing about the text of an answer here.
const WITHOUT_EFFECT: [&str; 12] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "verbosity",
    "reasoning_effort",
    "parallel_tool_calls",
    "add_generation_prompt",
    "skip_special_tokens",
    "request_id",
];

/// A request for a chat completion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    pub model: String,
    pub messages: Vec<Message>,
    /// Functions that the policy may call; none with `tool_choice: none`.
    pub tools: Vec<Value>,
    /// Sends the answer as server-sent events.
    pub stream: bool,
    /// Sends the counts of tokens as the last event.
    pub stream_usage: bool,
    /// Choices.
    pub n: u32,
    pub sampling: Sampling,
    /// Log-probs of the tokens.
    pub logprobs: bool,
    /// Token ids of prompt and response, as vLLM has them.
    pub return_token_ids: bool,
    /// Said about the step before, and about the state of this one.
    pub note: StepNote,
}

/// The settings of sampling that a request names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub seed: Option<u64>,
    pub max_tokens: Option<u64>,
    pub stop: Vec<String>,
    /// The stop text stays in the answer (`include_stop_str_in_output`, as vLLM has it).
    pub keeps_stop: bool,
    /// The chat template's thinking switch (`chat_template_kwargs: {enable_thinking}`, as vLLM has it).
    pub thinking: Option<bool>,
}

impl Sampling {
    /// The names of the settings, as a request has them.
    pub fn named(&self) -> Vec<&'static str> {
        let set = [
            ("temperature", self.temperature.is_some()),
            ("top_p", self.top_p.is_some()),
            ("top_k", self.top_k.is_some()),
            ("min_p", self.min_p.is_some()),
            ("seed", self.seed.is_some()),
            ("max_tokens", self.max_tokens.is_some()),
            ("stop", !self.stop.is_empty()),
            ("include_stop_str_in_output", self.keeps_stop),
            ("chat_template_kwargs", self.thinking.is_some()),
        ];
        set.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }
}

/// The key `nestor` of a request: facts of the environment that a program plays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepNote {
    /// Key of the state that this request is made in.
    pub anchor: Option<String>,
    /// Reward of the step before.
    pub reward: Option<f64>,
    /// False if the response before had the wrong form.
    pub valid: Option<bool>,
    /// The action that was read in the response before.
    pub action: Option<String>,
    /// A limit of the environment ended the episode.
    pub truncated: bool,
    /// Facts after the step before, such as `won`.
    pub info: Map<String, Value>,
    /// The environment's own numbers.
    pub metrics: BTreeMap<String, f64>,
}

impl StepNote {
    /// Reads the key `nestor`, or the body that ends an episode.
    ///
    /// # Errors
    /// For an unknown key and a value of the wrong type.
    pub fn read(object: &Map<String, Value>) -> Result<Self, Refusal> {
        let mut note = Self::default();
        for (key, value) in object {
            let wrong = |kind: &str| {
                Refusal::of_key(&format!("nestor.{key}"), format!("nestor.{key} is {value}; it must be {kind}"))
            };
            match key.as_str() {
                "anchor" => note.anchor = Some(value.as_str().ok_or_else(|| wrong("a text"))?.into()),
                "reward" => {
                    note.reward = Some(value.as_f64().filter(|r| r.is_finite()).ok_or_else(|| wrong("a number"))?)
                }
                "valid" => note.valid = Some(value.as_bool().ok_or_else(|| wrong("true or false"))?),
                "action" => note.action = Some(value.as_str().ok_or_else(|| wrong("a text"))?.into()),
                "truncated" => note.truncated = value.as_bool().ok_or_else(|| wrong("true or false"))?,
                "won" if value.is_boolean() => {
                    note.info.insert("won".into(), value.clone());
                }
                "won" => return Err(wrong("true or false")),
                "info" => note.info.extend(value.as_object().ok_or_else(|| wrong("an object"))?.clone()),
                "metrics" => {
                    note.metrics = serde_json::from_value(value.clone()).map_err(|_| wrong("an object of numbers"))?;
                }
                _ => {
                    return Err(Refusal::of_key(
                        &format!("nestor.{key}"),
                        format!(
                            "nestor.{key} is unknown; known: anchor, reward, valid, action, truncated, won, info, metrics"
                        ),
                    ));
                }
            }
        }
        Ok(note)
    }
}

impl Request {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// For a key that is unknown, of the wrong type, or asks for something that cannot be given. The refusal names it.
    pub fn read(body: &[u8]) -> Result<Self, Refusal> {
        let object: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| Refusal::new(400, format!("the body is no JSON object: {error}")))?;
        let mut request = Self { n: 1, ..Self::default() };
        let mut no_tools = false;
        for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
            match key.as_str() {
                "model" => request.model = text(key, value)?.into(),
                "messages" => request.messages = messages(value)?,
                "tools" => request.tools = list(key, value)?.clone(),
                "tool_choice" => no_tools = is_none(value)?,
                "stream" => request.stream = switch(key, value)?,
                "stream_options" => request.stream_usage = value["include_usage"].as_bool().unwrap_or(false),
                "n" => request.n = whole(key, value)?.try_into().map_err(|_| wrong(key, value, "a small number"))?,
                "temperature" => request.sampling.temperature = Some(number(key, value)?),
                "top_p" => request.sampling.top_p = Some(number(key, value)?),
                "top_k" => {
                    request.sampling.top_k = Some(value.as_i64().ok_or_else(|| wrong(key, value, "a whole number"))?)
                }
                "min_p" => request.sampling.min_p = Some(number(key, value)?),
                "seed" => request.sampling.seed = Some(whole(key, value)?),
                "max_tokens" | "max_completion_tokens" => request.sampling.max_tokens = Some(whole(key, value)?),
                "stop" => request.sampling.stop = texts(key, value)?,
                "include_stop_str_in_output" => request.sampling.keeps_stop = switch(key, value)?,
                "chat_template_kwargs" => request.sampling.thinking = thinking(key, value)?,
                "logprobs" => request.logprobs = switch(key, value)?,
                "top_logprobs" if value == 0 => {}
                "return_token_ids" | "return_tokens_as_token_ids" => request.return_token_ids = switch(key, value)?,
                "nestor" => {
                    request.note = StepNote::read(value.as_object().ok_or_else(|| wrong(key, value, "an object"))?)?;
                }
                "response_format" if value["type"] == "text" => {}
                "presence_penalty" | "frequency_penalty" if value.as_f64() == Some(0.0) => {}
                "repetition_penalty" if value.as_f64() == Some(1.0) => {}
                "logit_bias" if value.as_object().is_some_and(Map::is_empty) => {}
                _ if WITHOUT_EFFECT.contains(&key.as_str()) => {}
                _ => {
                    return Err(Refusal::of_key(
                        key,
                        format!("`{key}`: {value} is not supported here; leave the key out"),
                    ));
                }
            }
        }
        if !object.contains_key("messages") {
            return Err(Refusal::of_key("messages", "the request has no `messages`"));
        }
        if !(1..=64).contains(&request.n) {
            return Err(Refusal::of_key("n", format!("`n` is {}; it must be from 1 to 64", request.n)));
        }
        if no_tools {
            request.tools.clear();
        }
        Ok(request)
    }
}

fn messages(value: &Value) -> Result<Vec<Message>, Refusal> {
    let mut renamed = value.clone();
    for message in renamed.as_array_mut().into_iter().flatten() {
        if message["role"] == "developer" {
            message["role"] = "system".into();
        }
    }
    if renamed.as_array().is_some_and(|list| list.len() > MOST) {
        return Err(Refusal::of_key("messages", format!("the request has more than {MOST} messages")));
    }
    Message::chat(&renamed).map_err(|error| Refusal::of_key("messages", format!("{error:#}")))
}

/// True for `none`. Nothing forces a policy to call a tool, so that other choices than its own are refused.
fn is_none(value: &Value) -> Result<bool, Refusal> {
    match value.as_str() {
        Some("none") => Ok(true),
        Some("auto") => Ok(false),
        _ => Err(Refusal::of_key(
            "tool_choice",
            format!(
                "`tool_choice` is {value}; only `auto` and `none` are supported: nothing forces a model to call a tool"
            ),
        )),
    }
}

fn wrong(key: &str, value: &Value, kind: &str) -> Refusal {
    let shown: String = value.to_string().chars().take(60).collect();
    Refusal::of_key(key, format!("`{key}` is {shown}; it must be {kind}"))
}

/// The thinking switch among the arguments of a chat template.
fn thinking(key: &str, value: &Value) -> Result<Option<bool>, Refusal> {
    let wrong = || wrong(key, value, "an object with no other key than `enable_thinking`, which is true or false");
    let arguments = value.as_object().ok_or_else(wrong)?;
    let mut thinking = None;
    for (name, value) in arguments {
        thinking = Some(value.as_bool().filter(|_| name == "enable_thinking").ok_or_else(wrong)?);
    }
    Ok(thinking)
}

fn text<'a>(key: &str, value: &'a Value) -> Result<&'a str, Refusal> {
    value.as_str().ok_or_else(|| wrong(key, value, "a text"))
}

fn switch(key: &str, value: &Value) -> Result<bool, Refusal> {
    value.as_bool().ok_or_else(|| wrong(key, value, "true or false"))
}

fn number(key: &str, value: &Value) -> Result<f64, Refusal> {
    value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| wrong(key, value, "a number"))
}

fn whole(key: &str, value: &Value) -> Result<u64, Refusal> {
    value.as_u64().ok_or_else(|| wrong(key, value, "a whole number of at least 0"))
}

fn list<'a>(key: &str, value: &'a Value) -> Result<&'a Vec<Value>, Refusal> {
    let list = value.as_array().filter(|list| list.len() <= MOST && list.iter().all(Value::is_object));
    list.ok_or_else(|| wrong(key, value, "a list of objects"))
}

fn texts(key: &str, value: &Value) -> Result<Vec<String>, Refusal> {
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(list) => list.iter().map(|text| self::text(key, text).map(str::to_string)).collect(),
        _ => Err(wrong(key, value, "a text or a list of texts")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(more: Value) -> Result<Request, Refusal> {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }] });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        Request::read(body.to_string().as_bytes())
    }

    #[test]
    fn keys_are_read_or_refused_by_name() {
        let tool = json!({ "type": "function", "function": { "name": "f" } });
        let full = read(json!({
            "tools": [tool], "stream": true, "stream_options": { "include_usage": true }, "temperature": 0.5, "stop": "x", "user": "u",
            "max_completion_tokens": 7, "logprobs": true, "return_token_ids": true, "presence_penalty": 0, "seed": null,
            "nestor": { "anchor": "s1", "reward": -1, "valid": false, "info": { "won": true } },
        }))
        .expect("a request");
        assert_eq!((full.tools.len(), full.stream, full.stream_usage, full.n), (1, true, true, 1));
        assert_eq!(full.sampling.named(), ["temperature", "max_tokens", "stop"]);
        assert_eq!(
            (full.note.anchor.as_deref(), full.note.reward, full.note.valid),
            (Some("s1"), Some(-1.0), Some(false))
        );
        let thinks =
            read(json!({ "chat_template_kwargs": { "enable_thinking": false }, "include_stop_str_in_output": true }));
        assert_eq!(thinks.expect("a request").sampling.named(), ["include_stop_str_in_output", "chat_template_kwargs"]);
        assert!(read(json!({ "tools": [tool], "tool_choice": "none" })).expect("a request").tools.is_empty());
        for (more, key) in [
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "n": 0 }), "n"),
            (json!({ "n": -1 }), "n"),
            (json!({ "logit_bias": { "1": 2 } }), "logit_bias"),
            (json!({ "response_format": { "type": "json_object" } }), "response_format"),
            (json!({ "surprise": 1 }), "surprise"),
            (json!({ "tools": [1] }), "tools"),
            (json!({ "chat_template_kwargs": { "enable_thinking": true, "style": 1 } }), "chat_template_kwargs"),
            (json!({ "nestor": { "rewards": 1 } }), "nestor.rewards"),
            (json!({ "nestor": { "reward": "1" } }), "nestor.reward"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "role": "assistant", "content": "a" }] }), "messages"),
        ] {
            let refusal = read(more.clone()).expect_err(key);
            assert_eq!((refusal.status, refusal.key.as_deref()), (400, Some(key)), "{more}");
            assert!(
                refusal.message.contains(key.trim_start_matches("nestor.")) || key == "messages",
                "{}",
                refusal.message
            );
        }
        for body in ["", "[]", "{\"model\": \"m\"}"] {
            assert_eq!(Request::read(body.as_bytes()).expect_err(body).status, 400);
        }
    }
}
