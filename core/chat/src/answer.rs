//! The answer to a request, whole or in parts, as OpenAI and vLLM write it.

use std::time::{SystemTime, UNIX_EPOCH};

use nestor_plugin::Message;
use serde_json::{Map, Value, json};

use crate::refusal::Refusal;
use crate::request::Request;

/// A completed request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// One for each choice asked for.
    pub choices: Vec<Choice>,
}

/// One response.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The message of the assistant.
    pub message: Message,
    /// The text holds a call of a tool that is cut or no JSON, and stays text.
    pub broken_call: bool,
    /// The response reached its limit of tokens.
    pub cut: bool,
    /// Token ids, the end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// Log-prob of each token.
    pub logprobs: Vec<f32>,
    /// The text of each token; empty where the owner has none.
    pub pieces: Vec<String>,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// More text of a choice, for a request that streams.
    Text { choice: usize, text: String },
    /// The whole answer; the last part.
    Done(Answer),
    /// A body other than a completion's; the last part.
    Json(Value),
    /// The request is refused; the last part.
    Refused(Refusal),
}

impl Choice {
    fn finish_reason(&self) -> &'static str {
        match self.message.keys.get("tool_calls").and_then(Value::as_array) {
            Some(calls) if !calls.is_empty() => "tool_calls",
            _ if self.cut => "length",
            _ => "stop",
        }
    }

    fn logprobs(&self) -> Value {
        let entry = |(place, logprob): (usize, &f32)| {
            let token = self.pieces.get(place).cloned().unwrap_or_else(|| format!("token_id:{}", self.tokens[place]));
            json!({ "token": token, "logprob": logprob, "bytes": token.as_bytes(), "top_logprobs": [] })
        };
        json!({ "content": self.logprobs.iter().enumerate().map(entry).collect::<Vec<_>>() })
    }

    /// The keys of a choice beside its message, or the change of one.
    fn facts(&self, index: usize, request: &Request) -> Map<String, Value> {
        let mut facts = Map::new();
        facts.insert("index".into(), index.into());
        facts.insert("finish_reason".into(), self.finish_reason().into());
        facts.insert("logprobs".into(), if request.logprobs { self.logprobs() } else { Value::Null });
        if request.return_token_ids {
            facts.insert("token_ids".into(), json!(self.tokens));
        }
        if self.broken_call {
            facts.insert("broken_tool_call".into(), true.into());
        }
        facts
    }
}

/// Writes the answers to one request.
pub struct Writer {
    request: Request,
    id: String,
    created: u64,
    /// Bytes of each choice that are sent.
    sent: Vec<usize>,
}

impl Writer {
    /// `number` makes the answer's id.
    pub fn new(request: Request, number: u64) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let sent = vec![0; request.n as usize];
        Self { request, id: format!("chatcmpl-{number}"), created, sent }
    }

    pub fn streams(&self) -> bool {
        self.request.stream
    }

    fn head(&self, object: &str) -> Map<String, Value> {
        let mut head = Map::new();
        head.insert("id".into(), self.id.clone().into());
        head.insert("object".into(), object.into());
        head.insert("created".into(), self.created.into());
        head.insert("model".into(), self.request.model.clone().into());
        head
    }

    /// The body of an answer that does not stream.
    pub fn whole(&self, answer: &Answer) -> Value {
        let mut body = self.head("chat.completion");
        let choice = |(index, choice): (usize, &Choice)| {
            let mut facts = choice.facts(index, &self.request);
            facts.insert("message".into(), json!(choice.message));
            Value::Object(facts)
        };
        body.insert("choices".into(), answer.choices.iter().enumerate().map(choice).collect());
        body.insert("usage".into(), usage(answer));
        if self.request.return_token_ids {
            body.insert("prompt_token_ids".into(), json!(answer.prompt));
        }
        Value::Object(body)
    }

    fn event(&self, choices: Value) -> Map<String, Value> {
        let mut event = self.head("chat.completion.chunk");
        event.insert("choices".into(), choices);
        event
    }

    /// The event for more text of a choice.
    pub fn text(&mut self, choice: usize, text: &str) -> Value {
        let first = self.sent[choice] == 0;
        self.sent[choice] += text.len();
        let mut delta = json!({ "content": text });
        if first {
            delta["role"] = "assistant".into();
        }
        Value::Object(self.event(json!([{ "index": choice, "delta": delta, "finish_reason": null, "logprobs": null }])))
    }

    /// The events that complete an answer.
    pub fn last(&self, answer: &Answer) -> Vec<Value> {
        let mut events = Vec::new();
        for (index, choice) in answer.choices.iter().enumerate() {
            let sent = self.sent.get(index).copied().unwrap_or(0);
            let mut delta = Map::new();
            if sent == 0 {
                delta.insert("role".into(), "assistant".into());
            }
            if let Some(rest) = choice.message.content().get(sent..).filter(|rest| !rest.is_empty()) {
                delta.insert("content".into(), rest.into());
            }
            if let Some(Value::Array(calls)) = choice.message.keys.get("tool_calls") {
                let numbered = calls.iter().enumerate().map(|(number, call)| {
                    let mut call = call.clone();
                    call["index"] = number.into();
                    call
                });
                delta.insert("tool_calls".into(), numbered.collect());
            }
            let mut facts = choice.facts(index, &self.request);
            facts.insert("delta".into(), delta.into());
            let mut event = self.event(json!([facts]));
            if self.request.return_token_ids && index == 0 {
                event.insert("prompt_token_ids".into(), json!(answer.prompt));
            }
            events.push(Value::Object(event));
        }
        if self.request.stream_usage {
            let mut event = self.event(json!([]));
            event.insert("usage".into(), usage(answer));
            events.push(Value::Object(event));
        }
        events
    }
}

fn usage(answer: &Answer) -> Value {
    let drawn: usize = answer.choices.iter().map(|choice| choice.tokens.len()).sum();
    let prompt = answer.prompt.len();
    json!({ "prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn })
}
