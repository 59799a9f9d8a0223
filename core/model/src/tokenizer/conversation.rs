//! Continues a conversation whose messages come whole each time, as those of a chat endpoint do.
//!
//! A client sends the messages so far, and the template would render them anew. The text of a sampled response may encode to other
//! tokens than were sampled, and the arguments of a call may be written in another way. So a response is never rendered: where the
//! messages extend those of an earlier prompt by its response, the earlier tokens stay, and only the template's text behind the response is
//! encoded. A template that would write an earlier part in another way, as one that drops thoughts, cannot be continued so.

use anyhow::Result;
use serde_json::Value;

use super::{Message, Tokenizer};

/// Placeholders for a response, and for its thought, while a template is rendered.
const RESPONSE: &str = "nestor0response";
const THOUGHT: &str = "nestor0thought";
/// The tags of a thought.
const THINKING: [&str; 2] = ["<think>", "</think>"];

/// A prompt that the policy answered.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// The messages of the prompt.
    pub messages: &'a [Message],
    /// The text of the response.
    pub text: &'a str,
    /// Its tokens.
    pub response: &'a [u32],
}

/// Continues conversations with a tokenizer's chat template.
#[derive(Debug, Clone)]
pub struct Continuing {
    /// The end-of-sequence tokens by which the template itself ends an assistant's turn.
    ends: Vec<u32>,
}

impl Continuing {
    /// Examines the chat template.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let chat = [Message::new("user", "a"), Message::new("assistant", RESPONSE), Message::new("user", THOUGHT)];
        let end = tokenizer.render(&chat, false).ok().and_then(|text| {
            let after = text.split_once(RESPONSE)?.1;
            tokenizer.encode(after.split_once(THOUGHT)?.0).ok()
        });
        let ends = end.into_iter().flatten().filter(|id| tokenizer.eos().contains(id)).collect();
        Self { ends }
    }

    /// The tokens between a response and the next one, where `added` messages follow it. None where the template writes the messages
    /// before in another way once others follow: their tokens are then no beginning of the longer prompt.
    ///
    /// # Errors
    /// If the template refuses the prompt.
    pub fn added(
        &self,
        tokenizer: &Tokenizer,
        answered: Answered<'_>,
        added: &[Message],
        tools: Option<&[Value]>,
    ) -> Result<Option<Vec<u32>>> {
        let Answered { messages, text, response } = answered;
        let thinks = thinks(text);
        let placeholder = match thinks {
            true => format!("{}\n{THOUGHT}\n{}\n\n{RESPONSE}", THINKING[0], THINKING[1]),
            false => RESPONSE.to_string(),
        };
        let mut chat = messages.to_vec();
        chat.push(Message::new("assistant", placeholder));
        chat.extend_from_slice(added);
        let longer = tokenizer.render_with_tools(&chat, tools, true)?;
        let asked = tokenizer.render_with_tools(messages, tools, true)?;
        let known = tokenizer.render_with_tools(messages, tools, false)?;
        let Some((mut before, after)) = longer.split_once(RESPONSE) else { return Ok(None) };
        if thinks {
            let Some((begin, _)) = before.split_once(THOUGHT) else { return Ok(None) };
            before = begin;
        }
        // A generation prompt may open a response with more text than the template keeps later. And it may leave the blank before a
        // response, or the begin of a thought, to the model.
        let open = before.trim_end();
        let bare = open.strip_suffix(THINKING[0]).filter(|_| thinks).unwrap_or(open).trim_end();
        if !before.starts_with(known.trim_end()) || !(asked.starts_with(open) || asked.starts_with(bare)) {
            return Ok(None);
        }
        let mut tokens = tokenizer.encode(after)?;
        if let Some(own) = response.last().filter(|last| self.ends.contains(last))
            && let Some(end) = tokens.iter().position(|token| token == own)
        {
            tokens.drain(..=end);
        }
        Ok(Some(tokens))
    }
}

/// True if a response has a thought that is not empty.
fn thinks(text: &str) -> bool {
    text.split_once(THINKING[1])
        .is_some_and(|(thought, _)| !thought.trim_start().trim_start_matches(THINKING[0]).trim().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tokenizer::template::{CHATML, QWEN, QWEN3, Template};

    fn tokenizer(template: &str) -> Tokenizer {
        let mut tokenizer = Tokenizer::train(["x".to_string()].into_iter(), 259, false).expect("a tokenizer");
        let settings = json!({ "eos_token": "<|im_end|>" }).as_object().expect("a map").clone();
        tokenizer.template = Template::new(template, &settings).expect("a template");
        tokenizer
    }

    const END: u32 = 258;

    /// The added tokens as text.
    fn added(template: &str, said: &str, more: &[(&str, &str)]) -> Result<Option<String>> {
        let t = tokenizer(template);
        let tools = [json!({ "type": "function", "function": { "name": "f", "parameters": {} } })];
        let messages = [Message::new("system", "s"), Message::new("user", "a <|im_end|> b")];
        let response = [t.encode(said)?, vec![END]].concat();
        let more: Vec<Message> = more.iter().map(|&(role, text)| Message::new(role, text)).collect();
        let answered = Answered { messages: &messages, text: said, response: &response };
        let tools = (template != CHATML).then_some(&tools[..]);
        Ok(Continuing::new(&t).added(&t, answered, &more, tools)?.map(|ids| t.decode(&ids, false)))
    }

    #[test]
    fn what_follows_a_response_is_added_and_nothing_else() -> Result<()> {
        let user = "\n<|im_start|>user\nc <|im_end|> d<|im_end|>\n<|im_start|>assistant\n";
        for template in [CHATML, QWEN, QWEN3] {
            assert_eq!(added(template, "said", &[("user", "c <|im_end|> d")])?.as_deref(), Some(user));
        }
        let tool = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
        for template in [QWEN, QWEN3] {
            assert_eq!(added(template, "<tool_call>{}</tool_call>", &[("tool", "3")])?.as_deref(), Some(tool));
        }
        Ok(())
    }

    #[test]
    fn a_template_that_drops_a_thought_is_not_continued() -> Result<()> {
        // Qwen3's keeps thoughts until the user speaks again.
        let said = "<think>\nsome thought\n</think>\n\nsaid";
        assert_eq!(added(QWEN3, said, &[("user", "c")])?, None);
        assert!(added(QWEN3, said, &[("tool", "3")])?.is_some());
        assert!(added(QWEN, said, &[("user", "c")])?.is_some());
        assert!(added(QWEN3, "<think>\n\n</think>\n\nsaid", &[("user", "c")])?.is_some());
        let counts = "{{ messages | length }}{% for m in messages %}{{ m.content }};{% endfor %}";
        assert_eq!(added(counts, "said", &[("user", "c")])?, None);
        let last = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(added(last, "said", &[("user", "c")])?, None);
        let later = "{% for m in messages[-2:] %}{{ m.content }};{% endfor %}";
        assert_eq!(added(later, "said", &[("user", "c")])?, None);
        Ok(())
    }
}
