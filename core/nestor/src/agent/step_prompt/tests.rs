//! Random conversations: what the engine was asked with, and what it sampled, is what an update trains on.

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::{Value, json};

use super::*;
use crate::agent::episode_state::StepTokens;
use crate::agent::pack::{pack, tests::rollout};
use crate::agent::tasks::EpisodePlan;
use crate::data::Episode;
use crate::plugin::Observation;
use crate::recipe::HistoryMode;

/// Conversations of the test. They take seconds.
const CONVERSATIONS: u64 = 10_000;

const TEMPLATES: [&str; 3] = [
    include_str!("../../../../model/src/tokenizer/qwen2.5_chat_template.jinja"),
    include_str!("../../../../model/src/tokenizer/qwen3_chat_template.jinja"),
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{%- endfor %}\
     {%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}",
];

/// Pieces of texts that clients and policies write.
const PIECES: [&str; 16] = [
    "go north",
    " the box ",
    "é",
    "日本",
    "🙂",
    "\n\n",
    "  ",
    "<|im_end|>",
    "</think>",
    "<think>\nhm\n</think>\n\n",
    "{\"a\": 1}",
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\":  [1,2]}}\n</tool_call>",
    "<tool_call>{\"name\":",
    "3.14",
    "\u{301}",
    "x",
];

/// A byte-level tokenizer with a few merges, and the template.
fn tokenizer(template: &str) -> Tokenizer {
    let dir = tempfile::tempdir().expect("a folder");
    let texts = ["go north the box name arguments look tool_call think said thinking".to_string()];
    Tokenizer::train(texts.into_iter(), 300, false).expect("a tokenizer").save(dir.path()).expect("saved");
    std::fs::write(dir.path().join("chat_template.jinja"), template).expect("written");
    Tokenizer::load(dir.path()).expect("loaded")
}

/// A step as the engine had it: all tokens before the response, and the response.
type Sampled = (Vec<u32>, Vec<u32>);

struct Client<'a> {
    random: ChaCha8Rng,
    tokenizer: &'a Tokenizer,
    prompts: &'a StepPrompts,
    rollout: &'a Rollout,
    config: &'a Config,
}

impl Client<'_> {
    fn text(&mut self) -> String {
        (0..self.random.random_range(1..4)).map(|_| *PIECES.choose(&mut self.random).expect("pieces")).collect()
    }

    /// A response whose tokens need not be those that its text encodes to.
    fn response(&mut self) -> Vec<u32> {
        let mut tokens = Vec::new();
        for _ in 0..self.random.random_range(1..4) {
            let piece = PIECES.choose(&mut self.random).expect("pieces");
            match self.random.random_range(0..3) {
                0 => piece.chars().for_each(|c| tokens.extend(self.tokenizer.encode(&c.to_string()).expect("ids"))),
                _ => tokens.extend(self.tokenizer.encode(piece).expect("ids")),
            }
        }
        tokens.retain(|id| !self.tokenizer.eos().contains(id));
        match self.random.random_range(0..4) {
            0 => {} // cut
            1 => tokens.push(self.tokenizer.eos()[1]),
            _ => tokens.push(self.tokenizer.eos()[0]),
        }
        tokens
    }

    fn seen(&self, messages: &[Message], tools: &[Value]) -> Observation {
        let text = messages.last().map(|last| last.content().to_string()).unwrap_or_default();
        Observation {
            text,
            messages: messages.to_vec(),
            conversation: true,
            tools: tools.to_vec(),
            ..Observation::default()
        }
    }

    /// One episode, and its steps as the engine had them. Counts the prompts by their places.
    fn play(&mut self, places: &mut [u64; 3]) -> Result<(Episode, Vec<Sampled>)> {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } });
        let mut tools = if self.random.random_bool(0.5) { vec![tool("look")] } else { Vec::new() };
        let mut messages = vec![Message::new("system", self.text()), Message::new("user", self.text())];
        if self.random.random_bool(0.3) {
            messages.remove(0);
        }
        let mut playing = EpisodeState::new(EpisodePlan { group: 0, episode: 0, task: 0, seed: 0 });
        playing.begin(self.seen(&messages, &tools));
        let (mut sampled, mut asked) = (Vec::new(), Vec::new());
        for step in 0..self.random.random_range(1..6) {
            let settings = PromptSettings { tokenizer: self.tokenizer, rollout: self.rollout, config: self.config };
            let prompt = self.prompts.next(&playing, 0, settings)?;
            places[prompt.place as usize] += 1;
            let (whole, response) = (prompt.tokens(), self.response());
            let text = self.tokenizer.decode(&response, true);
            let reply = playing.parsed(&text).message(step);
            let StepPrompt { new, continues, .. } = prompt;
            let tokens =
                StepTokens { prompt: new, continues, response: response.clone(), logprobs: vec![-1.0; response.len()] };
            sampled.push((whole, response));
            playing.respond(tokens, text);
            asked.push(([messages.clone(), vec![reply]].concat(), tools.clone()));
            // The client continues the last conversation or an earlier one, as it is or with a change.
            (messages, tools) = match self.random.random_range(0..4) {
                0 => asked.choose(&mut self.random).cloned().expect("a step"),
                _ => asked.last().cloned().expect("a step"),
            };
            let answers = if self.random.random_bool(0.4) { 1 } else { 0 };
            (0..answers).for_each(|_| messages.push(Message::new("tool", self.text())));
            if answers == 0 || self.random.random_bool(0.2) {
                messages.push(Message::new("user", self.text()));
            }
            match self.random.random_range(0..12) {
                0 => messages[0].set_content(self.text()),
                1 => tools.push(tool("other")),
                2 => {
                    let before = messages.len() - 1;
                    messages.remove(before / 2);
                    if !matches!(messages[0].role.as_str(), "system" | "user") {
                        messages = vec![Message::new("user", self.text())];
                    }
                }
                _ => {}
            }
            playing.observe(self.seen(&messages, &tools), 99)?;
        }
        Ok((playing.finish(), sampled))
    }
}

/// The first step whose trained tokens are not those of the engine.
fn differs(episode: &Episode, sampled: &[Sampled], rollout: &Rollout) -> Option<usize> {
    let batch = pack(std::slice::from_ref(episode), rollout);
    let same = |(row, (prompt, response)): (usize, &Sampled)| {
        let sequence = &batch.sequences[batch.rows.sequence[row] as usize];
        let start = batch.rows.span_start[row] as usize;
        sequence.tokens[..start] == prompt[..]
            && batch.response(row as u32) == response
            && sequence.rows.contains(&(row as u32))
    };
    sampled.iter().enumerate().map(same).position(|same| !same)
}

#[test]
fn sampled_tokens_are_trained_tokens_in_random_conversations() -> Result<()> {
    let config = Config::shape("tiny")?;
    let (mut places, mut caught, mut steps) = ([0; 3], 0, 0);
    for (number, template) in TEMPLATES.iter().enumerate() {
        let tokenizer = tokenizer(template);
        for mode in [HistoryMode::Window, HistoryMode::Transcript] {
            let mut rollout = Rollout { max_prompt_tokens: 1 << 20, ..rollout(0.0) };
            rollout.history.mode = mode;
            let prompts =
                StepPrompts::new(vec![PromptTemplate::new("{{ observation }}", "test")?], &tokenizer, &rollout)?;
            let kind = 2 * number as u64 + u64::from(mode == HistoryMode::Transcript);
            for seed in (kind..CONVERSATIONS).step_by(2 * TEMPLATES.len()) {
                let random = ChaCha8Rng::seed_from_u64(seed);
                let (prompts, rollout, config) = (&prompts, &rollout, &config);
                let mut client = Client { random, tokenizer: &tokenizer, prompts, rollout, config };
                let (mut episode, sampled) = client.play(&mut places)?;
                assert_eq!(differs(&episode, &sampled, rollout), None, "conversation {seed}");
                steps += sampled.len();
                // Planted: the tokens that the texts encode to.
                for step in &mut episode.steps {
                    step.response = tokenizer.encode(&tokenizer.decode(&step.response, false))?;
                }
                let planted =
                    episode.steps.iter().zip(&sampled).any(|(step, (_, response))| step.response != *response);
                assert_eq!(differs(&episode, &sampled, rollout).is_some(), planted, "conversation {seed}");
                caught += usize::from(planted);
            }
        }
    }
    let [begun, continued, rewritten] = places;
    assert!(begun > 1000 && continued > 1000 && rewritten > 100, "{places:?}");
    assert!(caught > 1000, "{caught} of {CONVERSATIONS} with {steps} steps");
    Ok(())
}
