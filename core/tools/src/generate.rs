//! `nestor generate`: continues prompts with a model on disk.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nestor_images::read_image;
use serde::Serialize;
use tch::{Device, Kind};

use crate::chats::{self, Chat};
use crate::checkpoint::Source;
use crate::engine::{Completion, Engine, EngineOptions, FinishReason, NoiseKey, Request, Sampling, Weights, noise};
use crate::files::{TokenRow, read_tokens};
use crate::input_error;
use crate::model::vision::{expand, place};
use crate::model::{Config, Model, new};
use crate::terminal;
use crate::tokenizer::{IMAGE, Tokenizer, eos_ids};

/// Requests decoded at once.
const SLOTS: usize = 64;

/// The prompts.
#[derive(Debug, Clone)]
pub enum PromptSource {
    /// Raw text.
    Text(String),
    /// Chats as [`chats::read`] reads them.
    Chat {
        argument: String,
        /// Files of images, which come before the text of the last message.
        images: Vec<PathBuf>,
        /// The template's thinking switch; none keeps its default.
        thinking: Option<bool>,
    },
    /// A file `{"rows": [[ids…], …]}`; works without a tokenizer too.
    Tokens(PathBuf),
}

/// Options of `nestor generate`.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// A model as [`Source::find`] finds it.
    pub model: PathBuf,
    pub source: PromptSource,
    /// Maximum number of tokens of a continuation.
    pub max_new_tokens: usize,
    pub sampling: Sampling,
    /// Seed of the samples.
    pub seed: u64,
    /// The compute type.
    pub kind: Kind,
    pub device: Device,
}

/// Continuations, one entry per prompt in each column.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Generated {
    /// Token ids, the end-of-sequence token included.
    pub tokens: Vec<Vec<u32>>,
    /// The same as text without special tokens; empty if the folder has no tokenizer.
    pub text: Vec<String>,
    /// Log-prob of each token at the sampling temperature.
    pub logprobs: Vec<Vec<f32>>,
    /// `eos` or `length`.
    pub finished: Vec<&'static str>,
}

/// Loads the model and continues the prompts.
pub fn generate(options: &GenerateOptions) -> Result<Generated> {
    check_options(options)?;
    let found = Source::find(&options.model)?;
    let folder = found.folder();
    let has_tokenizer = folder.join("tokenizer.json").exists();
    let optional = matches!(options.source, PromptSource::Tokens(_)) && !has_tokenizer;
    let thinking = if let PromptSource::Chat { thinking, .. } = options.source { thinking } else { None };
    let tokenizer = if optional { None } else { Some(Tokenizer::load(folder)?.with_thinking(thinking)?) };
    if let Some(tokenizer) = &tokenizer {
        new::check_vocabulary(&Config::load(folder)?, tokenizer)
            .map_err(|error| input_error!("{}: {error:#}", folder.display()))?;
    }
    if let (PromptSource::Chat { .. }, Some(tokenizer)) = (&options.source, &tokenizer) {
        for warning in tokenizer.template_warnings(folder) {
            terminal::warn(&format!("warning: {warning}"));
        }
    }
    let prompts = prompts(options, tokenizer.as_ref(), &Config::load(folder)?)?;
    let model = found.load(options.kind, options.device)?;
    if let Some(row) = prompts.iter().position(|prompt| prompt.tokens.is_empty()) {
        return Err(input_error!("prompt {row} is empty; a prompt needs at least one token"));
    }
    model.config.check_tokens("prompt", prompts.iter().map(|prompt| &prompt.tokens[..]))?;
    let eos = match &tokenizer {
        Some(tokenizer) => tokenizer.eos().to_vec(),
        None => eos_ids(folder)?,
    };
    let mut generated = Generated::default();
    for done in complete(&model, prompts, eos, options)? {
        generated.text.push(tokenizer.as_ref().map_or_else(String::new, |t| t.decode(&done.tokens, true)));
        generated.tokens.push(done.tokens);
        generated.logprobs.push(done.logprobs);
        generated.finished.push(match done.finished {
            FinishReason::Eos => "eos",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        });
    }
    Ok(generated)
}

fn check_options(options: &GenerateOptions) -> Result<()> {
    let Sampling { temperature, top_k, top_p, min_p } = options.sampling;
    if !temperature.is_finite() || temperature < 0.0 {
        return Err(input_error!("--temperature must be a number from 0 (greedy), not {temperature}"));
    }
    if top_k < 0 {
        return Err(input_error!("--top-k must be 0 (off) or more, not {top_k}"));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(input_error!("--top-p must be greater than 0 and at most 1, not {top_p}"));
    }
    if !(0.0..=1.0).contains(&min_p) {
        return Err(input_error!("--min-p must be from 0 (off) to 1, not {min_p}"));
    }
    if options.max_new_tokens == 0 {
        return Err(input_error!("--max-new-tokens must be at least 1"));
    }
    Ok(())
}

fn prompts(options: &GenerateOptions, tokenizer: Option<&Tokenizer>, config: &Config) -> Result<Vec<TokenRow>> {
    match (&options.source, tokenizer) {
        (PromptSource::Text(text), Some(tokenizer)) => {
            Ok(vec![TokenRow { tokens: tokenizer.encode(text)?, images: Vec::new() }])
        }
        (PromptSource::Chat { argument, images, .. }, Some(tokenizer)) => {
            let row = |mut chat: Chat| {
                let shown = images.iter().map(|path| read_image(path)).collect::<Result<Vec<_>>>()?;
                if let (Some(last), false) = (chat.messages.last_mut(), shown.is_empty()) {
                    // Before those that the last message has itself.
                    let own = last.content().matches(IMAGE).count();
                    let at = chat.images.len().saturating_sub(own);
                    last.set_content(IMAGE.repeat(shown.len()) + last.content());
                    chat.images.splice(at..at, shown);
                }
                let tokens = tokenizer.chat_with_tools(&chat.messages, chat.tools.as_deref(), true)?;
                Ok(TokenRow { tokens: expand(tokens, &chat.images, config)?, images: chat.images })
            };
            chats::read(argument)?.chats.into_iter().map(row).collect()
        }
        (PromptSource::Tokens(path), _) => read_tokens(path),
        (_, None) => Err(input_error!("{}: has no tokenizer.json; give --tokens instead", options.model.display())),
    }
}

/// Completions in the order of the prompts.
fn complete(
    model: &Model,
    prompts: Vec<TokenRow>,
    eos: Vec<u32>,
    options: &GenerateOptions,
) -> Result<Vec<Completion>> {
    let GenerateOptions { max_new_tokens, sampling, seed, .. } = *options;
    let count = prompts.len();
    let capacity = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0) + max_new_tokens;
    let weights = Weights::new(model)?;
    let mut engine =
        Engine::new(EngineOptions { slots: SLOTS.min(count), capacity, ends: eos.into(), seed, ..Default::default() });
    for (episode, TokenRow { tokens: prompt, images }) in prompts.into_iter().enumerate() {
        let images = place(&prompt, &images, &model.config).with_context(|| format!("prompt {episode}"))?;
        let key = NoiseKey { stream: noise::GENERATE, episode: episode as u32, ..NoiseKey::default() };
        engine.submit(Request { key, prompt, images, max_new_tokens, sampling })?;
    }
    let mut done = HashMap::new();
    while !engine.is_idle() {
        done.extend(engine.step(&weights)?.into_iter().map(|c| (c.key.episode, c)));
    }
    (0..count as u32).map(|i| done.remove(&i).context("a prompt has no completion")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;

    #[test]
    fn settings_out_of_range_are_input_errors() {
        let good = GenerateOptions {
            model: PathBuf::new(),
            source: PromptSource::Text(String::new()),
            max_new_tokens: 1,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            seed: 0,
            kind: Kind::Float,
            device: Device::Cpu,
        };
        check_options(&good).expect("valid settings");
        let with = |sampling| GenerateOptions { sampling, ..good.clone() };
        let sampling = |temperature, top_k, top_p| with(Sampling { temperature, top_k, top_p, min_p: 0.0 });
        let cases = [
            (sampling(-1.0, 0, 1.0), "--temperature"),
            (sampling(f64::NAN, 0, 1.0), "--temperature"),
            (sampling(f64::INFINITY, 0, 1.0), "--temperature"),
            (sampling(1.0, -1, 1.0), "--top-k"),
            (sampling(1.0, 0, 0.0), "--top-p"),
            (sampling(1.0, 0, 1.1), "--top-p"),
            (sampling(1.0, 0, f64::NAN), "--top-p"),
            (with(Sampling { min_p: 1.1, ..good.sampling }), "--min-p"),
            (GenerateOptions { max_new_tokens: 0, ..good.clone() }, "--max-new-tokens"),
        ];
        for (options, name) in cases {
            let error = generate(&options).expect_err(name);
            assert!(error.is::<InputError>() && error.to_string().starts_with(name), "{error}");
        }
    }
}
