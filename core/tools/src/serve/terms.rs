//! A request as the engine computes it: the tokens of its prompt, and its settings within their bounds.

use std::path::{Path, PathBuf};

use anyhow::Result;
use nestor_chat::{Refusal, Request, for_template};
use sha2::{Digest, Sha256};

use crate::engine::Sampling;
use crate::input_error;
use crate::model::vision::expand;
use crate::model::{Config, new};
use crate::terminal;
use crate::tokenizer::Tokenizer;

/// Temperatures below this are greedy, as vLLM has it: logits that are divided by less overflow.
const GREEDY: f64 = 1e-5;
/// Highest temperature, as in a recipe.
const HOTTEST: f64 = 100.0;

/// The demands of a request on the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// Token ids.
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub sampling: Sampling,
    /// The seed of its noise, from that of the request and the prompt; none where each request has another one.
    pub seed: Option<u64>,
}

/// The tokenizer, with each setting of the chat template's thinking switch that requests ask for.
pub struct Chats {
    folder: PathBuf,
    usual: Tokenizer,
    /// Without and with thinking.
    switched: [Option<Tokenizer>; 2],
}

impl Chats {
    /// Loads the tokenizer of a model's folder.
    pub fn load(folder: &Path, thinking: Option<bool>) -> Result<Self> {
        let usual = Tokenizer::load(folder)?.with_thinking(thinking)?;
        new::check_vocabulary(&Config::load(folder)?, &usual)
            .map_err(|error| input_error!("{}: {error:#}", folder.display()))?;
        for warning in usual.template_warnings(folder) {
            terminal::warn(&format!("warning: {warning}"));
        }
        Ok(Self { folder: folder.into(), usual, switched: [None, None] })
    }

    /// The tokenizer as the server was started with it.
    pub fn usual(&self) -> &Tokenizer {
        &self.usual
    }

    fn with(&mut self, thinking: Option<bool>) -> Result<&Tokenizer> {
        let Some(thinking) = thinking else { return Ok(&self.usual) };
        let switched = &mut self.switched[usize::from(thinking)];
        if switched.is_none() {
            *switched = Some(Tokenizer::load(&self.folder)?.with_thinking(Some(thinking))?);
        }
        Ok(switched.as_ref().unwrap_or(&self.usual))
    }
}

impl Terms {
    /// Reads a request for a model whose prompt and response have `context` tokens together at most.
    ///
    /// # Errors
    /// For a setting out of its range, messages that the chat template refuses, and a prompt that is too long.
    pub fn of(request: &Request, chats: &mut Chats, config: &Config, context: usize) -> Result<Self, Refusal> {
        let sampling = sampling(request)?;
        if request.sampling.max_tokens == Some(0) {
            return Err(Refusal::of_key("max_tokens", "`max_tokens` is 0; it must be at least 1"));
        }
        if request.sampling.stop.iter().any(String::is_empty) {
            return Err(Refusal::of_key("stop", "`stop` holds an empty text; leave it out"));
        }
        let refused = |error: anyhow::Error| Refusal::of_key("messages", format!("{error:#}"));
        let tools = Some(&request.tools[..]).filter(|tools| !tools.is_empty());
        let prompt = chats
            .with(request.sampling.thinking)
            .map_err(|error| Refusal::of_key("chat_template_kwargs", format!("{error:#}")))?
            .chat_with_tools(&for_template(&request.messages), tools, true)
            .and_then(|tokens| expand(tokens, &[], config))
            .map_err(refused)?;
        if prompt.is_empty() {
            return Err(Refusal::of_key("messages", "the prompt is empty; a prompt needs at least one token"));
        }
        let room = context.saturating_sub(prompt.len());
        if room == 0 {
            return Err(Refusal::of_key(
                "messages",
                format!(
                    "the prompt has {} tokens, and the context holds {context}, with at least one of the response; shorten the \
                     messages, or start the server with a higher --max-tokens",
                    prompt.len()
                ),
            ));
        }
        let max_new_tokens = request.sampling.max_tokens.map_or(room, |most| most.min(room as u64) as usize);
        let seed = request.sampling.seed.filter(|_| !sampling.is_greedy()).map(|seed| noise_seed(seed, &prompt));
        Ok(Self { prompt, max_new_tokens, sampling, seed })
    }
}

/// A request's seed and prompt as one number: equal requests get equal noise, and others independent noise.
fn noise_seed(seed: u64, prompt: &[u32]) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(seed.to_le_bytes());
    prompt.iter().for_each(|token| hasher.update(token.to_le_bytes()));
    let sum: [u8; 32] = hasher.finalize().into();
    sum.iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn sampling(request: &Request) -> Result<Sampling, Refusal> {
    let asked = &request.sampling;
    let temperature = asked.temperature.unwrap_or(1.0);
    let (top_p, top_k, min_p) = (asked.top_p.unwrap_or(1.0), asked.top_k.unwrap_or(0), asked.min_p.unwrap_or(0.0));
    let wrong = |key: &str, value: &dyn std::fmt::Display, range: &str| {
        Err(Refusal::of_key(key, format!("`{key}` is {value}; it must be {range}")))
    };
    if !(0.0..=HOTTEST).contains(&temperature) {
        return wrong("temperature", &temperature, "from 0 (greedy) to 100");
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return wrong("top_p", &top_p, "greater than 0 and at most 1");
    }
    if top_k < -1 {
        return wrong("top_k", &top_k, "0 or -1 (off) or more");
    }
    if !(0.0..=1.0).contains(&min_p) {
        return wrong("min_p", &min_p, "from 0 (off) to 1");
    }
    let temperature = if temperature < GREEDY { 0.0 } else { temperature };
    Ok(Sampling { temperature, top_k: top_k.max(0), top_p, min_p })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Message;

    fn chats(dir: &Path) -> Chats {
        let usual = Tokenizer::train(["hello".to_string()].into_iter(), 300, false).expect("a tokenizer");
        Chats { folder: dir.into(), usual, switched: [None, None] }
    }

    fn request(change: impl FnOnce(&mut Request)) -> Request {
        let mut request = Request { n: 1, messages: vec![Message::new("user", "hello")], ..Request::default() };
        change(&mut request);
        request
    }

    #[test]
    fn settings_have_the_defaults_of_openai_and_bounds() {
        let (dir, config) = (Path::new("nowhere"), Config::shape("tiny").expect("a shape"));
        let of = |request: &Request, context| Terms::of(request, &mut chats(dir), &config, context);
        let plain = of(&request(|_| ()), 500).expect("terms");
        assert_eq!((plain.sampling, plain.seed), (Sampling::default(), None));
        assert_eq!(plain.max_new_tokens, 500 - plain.prompt.len());
        let bounded = |most| of(&request(|r| r.sampling.max_tokens = Some(most)), 500).expect("terms").max_new_tokens;
        assert_eq!((bounded(3), bounded(u64::MAX)), (3, plain.max_new_tokens));
        let cold = of(&request(|r| r.sampling.temperature = Some(1e-9)), 500).expect("terms");
        assert!(cold.sampling.is_greedy());
        let seeded = |seed| of(&request(|r| r.sampling.seed = Some(seed)), 500).expect("terms").seed;
        assert!(seeded(1).is_some() && seeded(1) == seeded(1) && seeded(1) != seeded(2));
        for (key, change) in [
            ("temperature", (|r| r.sampling.temperature = Some(-0.1)) as fn(&mut Request)),
            ("temperature", |r| r.sampling.temperature = Some(101.0)),
            ("top_p", |r| r.sampling.top_p = Some(0.0)),
            ("top_k", |r| r.sampling.top_k = Some(-2)),
            ("min_p", |r| r.sampling.min_p = Some(1.5)),
            ("max_tokens", |r| r.sampling.max_tokens = Some(0)),
            ("stop", |r| r.sampling.stop = vec![String::new()]),
            ("chat_template_kwargs", |r| r.sampling.thinking = Some(true)),
        ] {
            let refusal = of(&request(change), 500).expect_err(key);
            assert_eq!((refusal.status, refusal.key.as_deref()), (400, Some(key)), "{}", refusal.message);
        }
        let long = of(&request(|_| ()), plain.prompt.len()).expect_err("too long").message;
        assert!(long.starts_with(&format!("the prompt has {0} tokens", plain.prompt.len())), "{long}");
    }
}
