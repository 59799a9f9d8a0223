//! One model, its engine, and the requests that it answers.

use std::time::{SystemTime, UNIX_EPOCH};

use nestor_chat::{Answer, Choice, Parsed, Refusal, Reply, Request, parse};
use nestor_torch::ops::Ops;

use super::terms::{Chats, Terms};
use super::writing::{Writing, stop_in};
use crate::engine::Request as EngineRequest;
use crate::engine::{Completion, Engine, EngineOptions, FinishReason, NoiseKey, Weights, noise};
use crate::model::Model;
use crate::terminal;
use crate::tokenizer::Tokenizer;

/// A model and its requests.
pub struct Served<'a> {
    name: &'a str,
    model: &'a Model,
    engine: Engine,
    context: usize,
    /// Made for the first request.
    weights: Option<Weights<'a>>,
    /// Requests in the order that they came in.
    requests: Vec<Answering>,
    /// The noise of the next request without a seed.
    next_noise: u64,
}

/// A request under way.
struct Answering {
    request: Request,
    reply: Reply,
    terms: Terms,
    /// The noise of its choices.
    noise: u64,
    /// The engine has its choices. A request waits while another one with the same noise is there.
    submitted: bool,
    choices: Vec<Choosing>,
}

/// A choice under way.
#[derive(Default)]
struct Choosing {
    writing: Writing,
    done: Option<Choice>,
}

/// The tokens of a response, and the reason that it has no more.
struct Response {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    cut: bool,
}

impl<'a> Served<'a> {
    pub fn new(name: &'a str, model: &'a Model, options: EngineOptions) -> Self {
        let context = options.capacity;
        let next_noise = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Self { name, model, engine: Engine::new(options), context, weights: None, requests: Vec::new(), next_noise }
    }

    pub fn name(&self) -> &str {
        self.name
    }

    /// True if no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// True if the next pass makes the weights.
    pub fn needs_weights(&self) -> bool {
        !self.is_idle() && self.weights.is_none()
    }

    /// Frees an idle model's copy of its weights, where they are one.
    pub fn drop_weights(&mut self) {
        if self.model.ops == Ops::Fused {
            self.weights = None;
        }
    }

    /// Takes a request, or refuses it.
    pub fn take(&mut self, request: Request, reply: Reply, chats: &mut Chats) {
        let terms = match Terms::of(&request, chats, &self.model.config, self.context) {
            Ok(terms) => terms,
            Err(refusal) => return reply.refuse(refusal),
        };
        self.next_noise = self.next_noise.wrapping_add(1);
        let noise = terms.seed.unwrap_or(self.next_noise);
        let choices = (0..request.n).map(|_| Choosing::default()).collect();
        self.requests.push(Answering { request, reply, terms, noise, submitted: false, choices });
    }

    /// Runs one pass, and answers the requests that it completes.
    pub fn step(&mut self, tokenizer: &Tokenizer) {
        self.drop_abandoned();
        let passed = self.submit().and_then(|()| self.pass());
        match passed {
            Ok(completions) => {
                for completion in completions {
                    self.complete(completion, tokenizer);
                }
                self.write(tokenizer);
                self.answer();
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Frees the slots of clients that are gone.
    fn drop_abandoned(&mut self) {
        let Self { engine, requests, .. } = self;
        requests.retain(|answering| {
            let gone = answering.reply.is_closed();
            if gone {
                answering.keys().for_each(|key| engine.cancel(key));
            }
            !gone
        });
    }

    /// Gives the engine the requests that wait.
    fn submit(&mut self) -> anyhow::Result<()> {
        for place in 0..self.requests.len() {
            let noise = self.requests[place].noise;
            let is_taken = self.requests.iter().any(|other| other.submitted && other.noise == noise);
            if self.requests[place].submitted || is_taken {
                continue;
            }
            self.requests[place].submitted = true;
            let answering = &self.requests[place];
            let Terms { prompt, max_new_tokens, sampling, .. } = &answering.terms;
            for key in answering.keys() {
                self.engine.submit(EngineRequest {
                    key,
                    prompt: prompt.clone(),
                    images: Vec::new(),
                    max_new_tokens: *max_new_tokens,
                    sampling: *sampling,
                })?;
            }
        }
        Ok(())
    }

    fn pass(&mut self) -> anyhow::Result<Vec<Completion>> {
        if self.engine.is_idle() {
            return Ok(Vec::new());
        }
        let weights = match self.weights.take() {
            Some(weights) => weights,
            None => Weights::new(self.model)?,
        };
        self.engine.step(self.weights.insert(weights))
    }

    /// Records a response that the engine has completed.
    fn complete(&mut self, completion: Completion, tokenizer: &Tokenizer) {
        let Completion { key, tokens, logprobs, finished } = completion;
        let request =
            self.requests.iter_mut().find(|answering| answering.submitted && answering.noise == key.iteration);
        if let Some(answering) = request {
            let text = tokenizer.decode(&tokens, true);
            let cut = finished == FinishReason::Length;
            answering.finish(key.episode as usize, text, Response { tokens, logprobs, cut }, tokenizer);
        }
    }

    /// Reads the responses under way: sends the text of streams, and ends those that hold a stop text.
    fn write(&mut self, tokenizer: &Tokenizer) {
        let Self { engine, requests, .. } = self;
        for answering in requests.iter_mut().filter(|answering| answering.submitted && answering.is_read()) {
            for (number, key) in answering.keys().enumerate() {
                let Some((tokens, logprobs)) = engine.drawn(key) else { continue };
                answering.choices[number].writing.read(tokenizer, tokens);
                let text = answering.choices[number].writing.text();
                if stop_in(text, &answering.request.sampling.stop).is_some() {
                    let response = Response { tokens: tokens.to_vec(), logprobs: logprobs.to_vec(), cut: false };
                    let text = text.to_string();
                    answering.finish(number, text, response, tokenizer);
                    engine.cancel(key);
                } else if answering.streams() {
                    answering.send(number);
                }
            }
        }
    }

    /// Answers the requests whose choices are all there.
    fn answer(&mut self) {
        let mut place = 0;
        while place < self.requests.len() {
            if self.requests[place].choices.iter().any(|choice| choice.done.is_none()) {
                place += 1;
                continue;
            }
            let Answering { reply, terms, choices, .. } = self.requests.remove(place);
            reply.done(Answer { prompt: terms.prompt, choices: choices.into_iter().filter_map(|c| c.done).collect() });
        }
    }

    /// Refuses all requests under way after an error of the engine, which begins anew.
    fn fail(&mut self, error: &anyhow::Error) {
        let message = format!("{error:#}");
        terminal::warn(&format!("error: model {}: {message}", self.name));
        self.engine.clear();
        for answering in self.requests.drain(..) {
            answering.reply.refuse(Refusal::new(500, format!("the server cannot compute: {message}")));
        }
    }
}

impl Answering {
    /// The addresses of the choices' noise.
    fn keys(&self) -> impl Iterator<Item = NoiseKey> + use<> {
        let (iteration, count) = (self.noise, self.choices.len() as u32);
        (0..count).map(move |episode| NoiseKey { stream: noise::SERVE, iteration, episode, step: 0 })
    }

    /// True if parts of the text are sent. The text of calls of tools is taken apart at its end.
    fn streams(&self) -> bool {
        self.request.stream && self.request.tools.is_empty()
    }

    /// True if its responses are read while they are drawn.
    fn is_read(&self) -> bool {
        self.streams() || !self.request.sampling.stop.is_empty()
    }

    /// Sends the new text of a choice.
    fn send(&mut self, number: usize) {
        if let Some(text) = self.choices[number].writing.next(&self.request.sampling.stop) {
            self.reply.text(number, text);
        }
    }

    /// Completes a choice whose tokens have this text.
    fn finish(&mut self, number: usize, mut text: String, response: Response, tokenizer: &Tokenizer) {
        let Request { sampling, tools, messages, logprobs, .. } = &self.request;
        let stop = stop_in(&text, &sampling.stop);
        if let Some(at) = stop.filter(|_| !sampling.keeps_stop) {
            text.truncate(at);
        }
        let parsed = if tools.is_empty() { Parsed::of_text(&text) } else { parse(&text) };
        let turns = messages.iter().filter(|message| message.role == "assistant").count();
        let pieces = if *logprobs { tokenizer.pieces(&response.tokens) } else { Vec::new() };
        let Response { tokens, logprobs, cut } = response;
        self.choices[number].done = Some(Choice {
            message: parsed.message(turns as u32),
            broken_call: parsed.broken,
            cut: cut && stop.is_none(),
            tokens,
            logprobs,
            pieces,
        });
    }
}
